"use strict";
// Assembles the report.

function buildPage() {
  const page = document.getElementById("page");
  const sections = [learningSection(), overoptimisationSection(), driftSection(), optimisationSection(), timeSection(), commitSection(), dropSection(), alertBlock(),
    sampleSection(), worstSection(), eventSection(), runCard()].filter(Boolean);
  page.replaceChildren(titleBlock(), ...[noticeBlock()].filter(Boolean), tiles(), ...sections,
    el("footer", {}, "Written by tandem report. delta = log pi_proximal - log pi_behaviour; w = e^delta. Every key is explained in docs/metrics.md."));
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
  document.body.append(tip);
}

buildPage();
startTheme();
goToToken();
