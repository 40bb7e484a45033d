"use strict";
// Curves over positions: whether drift grows along a completion, and which part makes it grow.

const partMarks = [["cast", "blue"], ["body", "orange"], ["kv", "green"], ["head", "pink"], ["staleness", "red"], ["kernels", "sky"], ["layout", "yellow"], ["record", "grey"],
  ["path", "sky", {dashed: true}], ["emulation", "pink", {dashed: true}], ["trainer_record", "grey", {dashed: true}]];

// Causes found inside the record have no fixed mark. They use the remaining ones, dashed.
function marksOf(names) {
  const others = names.filter((name) => !partMarks.some(([known]) => known === name));
  const tints = ["yellow", "red", "green", "blue", "orange"];
  return [...partMarks.filter(([name]) => names.includes(name)), ...others.map((name, i) => [name, tints[i % tints.length], {dashed: true}])];
}

// The middle of the bin; a bin of one position is at that position.
const positionAt = (bin) => (attribution.positions.from[bin] + attribution.positions.to[bin]) / 2;

function positionCard(title, note, what) {
  const {positions} = attribution;
  const bins = positions.tokens.map((_, bin) => bin);
  const parts = marksOf(Object.keys(positions.parts)).filter(([name]) => positions.parts[name] && positions.parts[name][what].some((value) => isNumber(value) && value !== 0));
  const partLine = ([name, tint, options]) => band(name, bins.map((bin) => ({x: positionAt(bin), y: positions.parts[name][what][bin]})), tint, options)[0];
  const totals = () => bins.map((bin) => ({x: positionAt(bin), ...named(interval(positions[what][bin]))}));
  const named = ({value, low, high}) => ({y: value, low, high});
  return chartCard(title, note, [["delta", "ink"], ...parts.map(([name, tint, options]) => [name, tint, options && options.dashed])], () => ({
    type: "line",
    data: {datasets: [...parts.map(partLine), ...band("delta", totals(), "ink")]},
    options: {scales: {x: axis("position in the completion", {type: "linear", min: 0, max: Math.max(1, positions.to[bins.length - 1] || 1), grid: false, ticks: {precision: 0}}), y: axis("nats", {suggestedMin: 0})}},
  }));
}

function positionSection() {
  const {tokens, from, to} = attribution.positions;
  if (tokens.length < 2) return null;
  const width = to[0] - from[0] + 1;
  return section("positions", "Along the completion", `Each point is ${width === 1 ? "one position" : `${width} positions`}: ${number(tokens[0], 9)} tokens in the first, ${number(tokens[tokens.length - 1], 9)} in the last. The band is the 95 % interval of delta; it ends where too few completions are that long.`,
    el("div", {class: "grid"}, positionCard("Mean |delta| and mean |part|", "A rounding cache grows from the first token on; a cast is there from the first token; a lag does not care.", "mean_abs"),
      positionCard("Mean delta and mean part", "Parts add up to delta at every position.", "mean")));
}
