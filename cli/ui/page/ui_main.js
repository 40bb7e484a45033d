"use strict";
// tandem ui: the page, its keys, and the questions it asks while it is open.

const kListSeconds = 5, kRowSeconds = 2;
const states = {finished: ["finished", "finished"], stopped: ["stopped", "stopped"], "in progress": ["running", "running"], silent: ["warn", "silent"]};

const filter = el("input", {type: "search", placeholder: "Filter runs ( / )", "aria-label": "Filter runs", id: "filter"});
const list = el("tbody", {});
const legend = el("div", {class: "keys", id: "legend"});
const beside = el("div", {});
const empty = el("p", {class: "empty", role: "status"});
const trouble = el("p", {class: "notice", role: "alert", hidden: ""});

const age = (seconds) => (!isNumber(seconds) || seconds < 0 ? "" : seconds < 90 ? "now" : duration(seconds) + " ago");
const runUrl = (name, page) => `/runs/${encodeURIComponent(name)}/${page}`;

function links(run) {
  return el("span", {class: "links"}, el("a", {href: runUrl(run.name, "report.html"), target: "_blank", rel: "noopener"}, "report"),
    run.attributions.map((step) => [" ", el("a", {href: runUrl(run.name, `captures/step_${step}/attribution.html`), target: "_blank", rel: "noopener"}, `drift at ${step}`)]));
}

function rowOf(run) {
  const [kind, text] = states[run.state] || states["in progress"];
  const box = el("input", {type: "checkbox", tabindex: "-1", "aria-label": `Compare ${run.name}`});
  box.checked = chosen.has(run.name);
  const mark = el("i", {class: "mark-of-run", "aria-hidden": "true"});
  if (chosen.has(run.name)) {
    mark.style.background = colour(tintOf(chosen.get(run.name).slot));
    mark.classList.toggle("dashed", isDashed(chosen.get(run.name).slot));
  }
  const of = run.last;
  const row = el("tr", {tabindex: "0", "aria-selected": String(chosen.has(run.name)), title: run.model ? `model ${run.model}, started ${run.started_at}` : null},
    el("td", {class: "tight"}, box, mark), el("td", {class: "name"}, run.name, links(run)), el("td", {class: "tight"}, el("span", {class: `badge ${kind}`}, text)),
    el("td", {class: "num"}, plain(run.step)), el("td", {class: "num"}, number(of["reward/mean"])), el("td", {class: "num wide"}, number(of["drift/mean_abs_delta"])),
    el("td", {class: "num wide"}, number(of["throughput/sampled_tokens_per_s"])), el("td", {class: "tight wide"}, age(run.seconds_ago)));
  row.dataset.run = run.name;
  return row;
}

function drawList() {
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.run : undefined;
  const wanted = filter.value.trim().toLowerCase();
  const shown = [...runs.values()].filter((run) => run.name.toLowerCase().includes(wanted));
  list.replaceChildren(...shown.map(rowOf));
  empty.textContent = shown.length ? "" : runs.size ? "No run has this in its name." : `There is no run in ${pageData.roots.join(", ")} yet; this page looks again every few seconds.`;
  const again = focused === undefined ? null : [...list.children].find((row) => row.dataset.run === focused);
  if (again) again.focus({preventScroll: true});
}

function drawLegend() {
  legend.replaceChildren(...[...chosen].map(([name, one]) => {
    const key = el("span", {class: isDashed(one.slot) ? "dashed" : null}, name);
    key.style.setProperty("--key", colour(tintOf(one.slot)));
    return key;
  }));
  if (!chosen.size) legend.replaceChildren(el("span", {class: "hint"}, "Choose runs with a click or the space bar: their curves appear here."));
}

function drawChosen() {
  drawLegend();
  redrawCurves();
  beside.replaceChildren(...[comparisonCard()].filter(Boolean));
}

async function toggle(name, want) {
  choose(name, want);
  putChoiceInAddress();
  drawList();
  drawChosen();
  await followChosen();
}

// --- what the page asks

async function asked(work) {
  try {
    await work();
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = `tandem ui does not answer (${error.message}). The page goes on asking.`;
    trouble.hidden = false;
  }
}

async function readRuns() {
  const answer = await fetch("/api/runs");
  if (!answer.ok) throw new Error(await answer.text());
  const found = await answer.json();
  runs.clear();
  for (const run of found) runs.set(run.name, run);
  for (const name of chosen.keys()) if (!runs.has(name)) chosen.delete(name);
  drawList();
}

async function followChosen() {
  await asked(async () => {
    let moved = false;
    for (const name of [...chosen.keys()]) {
      while (chosen.has(name) && (await readOn(name, keysToRead))) moved = true;  // a long run comes in parts
    }
    if (moved) drawChosen();
  });
}

// --- keys and clicks

function move(by) {
  const rows = [...list.children];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))].focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const writing = event.target === filter;
  const run = event.target.dataset ? event.target.dataset.run : undefined;
  const keys = {ArrowDown: () => move(1), ArrowUp: () => move(-1)};
  if (writing) Object.assign(keys, {Escape: () => { filter.value = ""; drawList(); move(0); }});
  else Object.assign(keys, {j: () => move(1), k: () => move(-1), "/": () => filter.focus()});
  if (run !== undefined) Object.assign(keys, {" ": () => toggle(run), Enter: () => window.open(runUrl(run, "report.html"), "_blank", "noopener")});
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

function onClick(event) {
  if (event.target.closest("a")) return;
  const row = event.target.closest("tr");
  if (row && row.dataset.run !== undefined) toggle(row.dataset.run);
}

function buildUi() {
  const head = ["", "run", "state", "step", "reward"].map((name, i) => el("th", {class: i > 2 ? "num" : null}, name));
  const wide = ["drift", "tokens/s", "written"].map((name, i) => el("th", {class: i < 2 ? "num wide" : "wide"}, name));
  document.getElementById("page").replaceChildren(trouble,
    section("runs", "Runs", null, el("div", {class: "card"}, filter, el("div", {class: "scroll runs"}, el("table", {}, el("thead", {}, el("tr", {}, head, wide)), list)), empty,
      el("p", {class: "note keys-help"}, "Keys: ", ["\u2191 \u2193 or j k", "space compares", "Enter opens the report", "/ filters"].map((text) => [el("kbd", {}, text), " "])))),
    section("compare", "Compared", null, legend, beside, el("div", {class: "grid curves"}, chartCards.map(({node}) => node))));
  for (const node of document.querySelectorAll("section")) document.getElementById("nav").append(el("a", {href: "#", "data-to": node.id}, node.querySelector("h2").textContent));
  document.getElementById("nav").addEventListener("click", (event) => {
    event.preventDefault();  // the address is the choice
    if (event.target.dataset.to) document.getElementById(event.target.dataset.to).scrollIntoView();
  });
  document.addEventListener("keydown", onKey);
  list.addEventListener("click", onClick);
  filter.addEventListener("input", drawList);
  document.body.append(tip);
}

async function startUi() {
  buildUi();
  repaints.push(drawList, drawChosen);
  startTheme();
  await asked(readRuns);
  for (const name of choiceInAddress()) if (runs.has(name)) choose(name, true);
  if (!chosen.size) for (const run of runs.values()) if (run.state === "in progress" && chosen.size < 4) choose(run.name, true);
  drawList();
  drawChosen();
  await followChosen();
  setInterval(() => { if (!document.hidden) asked(readRuns); }, kListSeconds * 1000);
  setInterval(() => { if (!document.hidden) followChosen(); }, kRowSeconds * 1000);
}

startUi();
