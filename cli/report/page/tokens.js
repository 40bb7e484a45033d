"use strict";
// Tokens: their visible text, their colour by delta, and the box with their numbers.

// Full colour at `full` nats. The square root makes small differences visible.
const deltaTints = () => ({more: cssVariable("--more"), less: cssVariable("--less")});
function shade(delta, full = .5, tints = deltaTints()) {
  if (!isNumber(delta)) return "transparent";
  const strength = full > 0 ? Math.min(1, Math.sqrt(Math.abs(delta) / full)) * .85 : 0;
  return `rgba(${delta > 0 ? tints.more : tints.less}, ${strength.toFixed(3)})`;
}

// Makes white space and control characters visible.
function visible(text) {
  return plainToken(text).replace(/\n/g, "\u21b5\n").replace(/\t/g, "\u21e5").replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "\u2423");
}
const plainToken = (text) => (typeof text === "string" ? text : text === null || text === undefined ? "" : String(text));

const tip = el("div", {id: "tip", role: "tooltip"});

// Below the rectangle `box` (of getBoundingClientRect) and inside the width of the page.
function placeTip(text, box) {
  tip.textContent = text;
  tip.style.display = "block";
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  tip.style.left = `${left + window.scrollX}px`;
  tip.style.top = `${box.bottom + window.scrollY + 6}px`;
}
const showTip = (target) => placeTip(target.tipText, target.getBoundingClientRect());
const hideTip = () => { tip.style.display = "none"; };

// A token between the text before and after it, coloured by delta.
function contextNode(before, token, after, delta, full) {
  const hit = el("span", {class: "hit"}, visible(token) || "\u2205");
  hit.dataset.delta = delta;
  if (full) hit.dataset.full = full;
  return el("div", {class: "context mono"}, el("span", {class: "dim"}, before), hit, el("span", {class: "dim"}, after));
}

function paintTokens() {
  for (const node of document.querySelectorAll("[data-delta]")) {
    node.style.backgroundColor = node.dataset.delta === "" ? "" : shade(Number(node.dataset.delta), Number(node.dataset.full) || undefined);
  }
}
