"use strict";
// Light and dark: the system's, or the reader's choice; ?theme=dark asks for one.

const repaints = [];  // what draws with colours of the theme and is neither a chart nor a token

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawCharts();
  paintTokens();
  for (const repaint of repaints) repaint();
}

// On paper a dark page is ink; whatever was chosen comes back afterwards.
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
