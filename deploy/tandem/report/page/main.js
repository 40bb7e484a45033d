"use strict";
// Puts the page together and keeps its theme.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
  drawCharts();
  paintTokens();
}

function startTheme() {
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

function buildPage() {
  const page = document.getElementById("page");
  const sections = [learningSection(), driftSection(), optimisationSection(), timeSection(), commitSection(), dropSection(), alertBlock(),
    sampleSection(), worstSection(), eventSection(), runCard()].filter(Boolean);
  page.replaceChildren(titleBlock(), ...[noticeBlock()].filter(Boolean), tiles(), ...sections,
    el("footer", {}, "Written by tandem report. delta = log pi_proximal - log pi_behaviour; w = e^delta. Every key is explained in docs/metrics.md."));
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
  document.body.append(tip);
}

buildPage();
startTheme();
