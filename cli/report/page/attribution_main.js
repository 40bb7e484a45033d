"use strict";
// Assembles the page of an attribution.

function provenance() {
  const {about} = attribution;
  return el("footer", {}, `Written by tandem drift attribute --html. Capture ${attribution.capture}`, about.created_at ? `, made ${about.created_at}` : "", about.tandem_version ? ` by tandem ${about.tandem_version}` : "",
    `, model ${plain(about.model)}. How to read this page: docs/attribution.md.`);
}

function buildPage() {
  const page = document.getElementById("page");
  const sections = (attribution.comparable ? [verdictSection(), partsSection(), splitSection(), positionSection(), mapSection(), worstSection(), numberSection()]
    : [verdictSection(), gateSection()]).filter(Boolean);
  page.replaceChildren(attributionTitle(), ...[injectedBlock()].filter(Boolean), ...sections, provenance());
  if (attribution.comparable) document.getElementById("verdict").append(driftTiles());
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
  document.body.append(tip);
}

buildPage();
startTheme();
