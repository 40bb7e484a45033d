"use strict";
// tandem ui: the runs, those that are chosen, and what they have written. One place holds all of it.

const runs = new Map();    // name -> its summary
const chosen = new Map();  // name -> {slot, offset, rows: Map of step -> row}, in the order of choice

const tintOrder = ["blue", "orange", "green", "pink", "sky", "red", "yellow", "grey"];
const tintOf = (slot) => tintOrder[slot % tintOrder.length];
const isDashed = (slot) => slot >= tintOrder.length;

function freeSlot() {
  const taken = new Set([...chosen.values()].map((one) => one.slot));
  let slot = 0;
  while (taken.has(slot)) ++slot;
  return slot;
}

function choose(name, want = !chosen.has(name)) {
  if (want && !chosen.has(name)) chosen.set(name, {slot: freeSlot(), offset: 0, rows: new Map()});
  if (!want) chosen.delete(name);
}

// The address names the choice, so that it can be kept and sent.
const choiceInAddress = () => new URLSearchParams(location.hash.slice(1)).getAll("run");
function putChoiceInAddress() {
  const names = new URLSearchParams([...chosen.keys()].map((name) => ["run", name]));
  history.replaceState(null, "", names.size || String(names) ? "#" + names : location.pathname + location.search);
}

// What the run has written since the last call. True if there was something.
async function readOn(name, keys) {
  const one = chosen.get(name);
  const answer = await fetch("/api/rows?" + new URLSearchParams({run: name, after: one.offset, keys: keys.join(",")}));
  if (!answer.ok) throw new Error(await answer.text());
  const {offset, rows, again} = await answer.json();
  if (again) one.rows.clear();
  for (const row of rows) one.rows.set(row.step, {...one.rows.get(row.step), ...row});  // a resumed run repeats steps
  const moved = offset !== one.offset;
  one.offset = offset;
  return moved;
}

const valuesOf = (one, key) => [...one.rows.values()].sort((a, b) => a.step - b.step)
  .map((row) => ({x: row.step, y: row[key], low: row[key + "_low"], high: row[key + "_high"]})).filter((point) => isNumber(point.y));

// The mean of the last `count` values with a 95 % interval from their spread over steps (Student's t).
// Steps depend on each other, so it says how much they vary rather than how sure the mean is.
const studentT = [NaN, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093];
function recent(points, count) {
  const last = points.slice(-count).map((point) => point.y);
  const n = last.length;
  if (!n) return {value: null, n};
  const mean = last.reduce((sum, value) => sum + value, 0) / n;
  if (n < 2) return {value: mean, n};
  const variance = last.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = (studentT[n - 1] || 1.96) * Math.sqrt(variance / n);
  return {value: mean, low: mean - half, high: mean + half, n};
}
