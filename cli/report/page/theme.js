"use strict";
// The light or dark theme: that of the system, the reader's choice, or ?theme=dark.

const repaints = [];  // what draws with colours of the theme and is neither a chart nor a token

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawCharts();
  paintTokens();
  for (const repaint of repaints) repaint();
}

// Pages print in the light theme. Afterwards the chosen theme returns.
function startPrinting() {
  let shown = null;
  window.addEventListener("beforeprint", () => { shown = document.documentElement.dataset.theme; setTheme("light"); });
  window.addEventListener("afterprint", () => { if (shown) setTheme(shown); });
}

function startTheme() {
  startPrinting();
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const asked = new URLSearchParams(location.search).get("theme");
  let chosen = asked === "dark" || asked === "light" ? asked : null;
  setTheme(chosen || (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => { if (!chosen) setTheme(system.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    setTheme(chosen);
  });
}
