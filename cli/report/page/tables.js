"use strict";
// Weight commits, drops, other events.

function commitSection() {
  const commits = runData.commits;
  return section("commits", "Weight commits", "Proof of delivery: what each server said was live after each push.",
    commits.length ? el("div", {class: "card"}, table([
      {name: "version", num: true, cell: (c) => plain(c.version)}, {name: "at", num: true, cell: (c) => duration(c.time_s)}, {name: "server", tight: true, cell: (c) => plain(c.server)},
      {name: "digest", tight: true, cell: (c) => mono(plain(c.digest).slice(0, 16))}, {name: "size", num: true, cell: (c) => bytes(c.bytes)},
      {name: "changed", num: true, cell: (c) => percent(c.changed_share, 2)}, {name: "arrived", num: true, cell: (c) => number(c.arrived_share)},
      {name: "seconds", num: true, cell: (c) => number(c.seconds)}, {name: "pause", num: true, cell: (c) => (isNumber(c.pause_ms) ? number(c.pause_ms) + " ms" : "-")}], commits, true))
      : el("p", {class: "empty"}, "No commit recorded."));
}

function dropSection() {
  const drops = Object.entries(runData.drops).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const groups = Object.entries(runData.dropped_groups).sort((a, b) => b[1] - a[1]);
  const counts = (rows, empty) => (rows.length ? table([{name: "reason", cell: (r) => plain(r[0])}, {name: "count", num: true, cell: (r) => number(r[1])}], rows) : el("p", {class: "empty"}, empty));
  return section("drops", "Drops", "What was sampled and not trained, by reason.", el("div", {class: "grid"},
    card("By reason, all steps", null, counts(drops, "Nothing was dropped.")),
    card("Whole groups dropped", null, counts(groups, "No group was dropped."))));
}

function eventSection() {
  const usual = new Set(["time_s", "step", "kind", "message"]);
  const extra = (event) => Object.entries(event).filter(([key]) => !usual.has(key)).map(([key, value]) => `${key} ${plain(value)}`).join(", ");
  return runData.events.length ? section("events", "Events", null, el("div", {class: "card"}, table([
    {name: "at", num: true, cell: (e) => duration(e.time_s)}, {name: "step", num: true, cell: (e) => plain(e.step)}, {name: "kind", tight: true, cell: (e) => plain(e.kind)},
    {name: "message", cell: (e) => [plain(e.message), extra(e) ? el("div", {class: "formula"}, extra(e)) : null]}], runData.events, true))) : null;
}
