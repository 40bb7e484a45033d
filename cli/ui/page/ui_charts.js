"use strict";
// tandem ui: the chosen runs beside each other, as curves over steps and as numbers of the last steps.

const curves = [
  {key: "reward/mean", title: "Reward", note: "mean over all completions of a step"},
  {key: "eval/greedy", title: "Held-out greedy", note: "mean reward of the held-out prompts at temperature 0", dots: true},
  {key: "drift/mean_abs_delta", title: "Drift: mean abs delta", note: "|log pi_proximal - log pi_behaviour|, nats; band: 95 % over completions", y: {suggestedMin: 0}},
  {key: "drift/ess_fraction", title: "Effective sample size", note: "share of all tokens, before any clamp; band: 95 % over completions", y: {suggestedMin: 0, suggestedMax: 1}},
  {key: "throughput/sampled_tokens_per_s", title: "Sampled tokens a second", note: "by all servers, over the step", y: {suggestedMin: 0}},
  {key: "time/step", title: "Seconds of a step", note: "from the first group to the weight push", y: {suggestedMin: 0}},
  {key: "staleness/mean", title: "Staleness", note: "versions between drawing and training, mean over tokens", y: {suggestedMin: 0, suggestedMax: 1}},
  {key: "length/mean", title: "Length", note: "tokens of a completion, stop token included", y: {suggestedMin: 0}},
];
const keysToRead = curves.map((curve) => curve.key);
const compared = [["reward/mean", "Reward", number], ["drift/mean_abs_delta", "Drift, nats", number], ["throughput/sampled_tokens_per_s", "Sampled tokens a second", number]];
const kRecentSteps = 10;

function curveConfig({key, dots, y}) {
  const datasets = [...chosen].flatMap(([name, one]) => {
    const points = valuesOf(one, key);
    if (!points.length) return [];
    const sets = band(name, points, tintOf(one.slot), {dashed: isDashed(one.slot)});
    if (dots || points.length === 1) sets[0].pointRadius = 4;
    return points.some(isKnown) ? sets : sets.slice(0, 1);
  });
  return {type: "line", data: {datasets}, options: {
    parsing: false, normalized: true,
    scales: {x: axis("train step", {type: "linear", grid: false, ticks: {precision: 0}}), y: axis(null, y || {})}}};
}

const chartCards = curves.map((curve) => ({curve, node: chartCard(curve.title, curve.note, [], () => curveConfig(curve))}));

// Draws new points into the charts there are; a chart without points is hidden.
function redrawCurves() {
  for (const {curve, node} of chartCards) {
    node.hidden = ![...chosen.values()].some((one) => valuesOf(one, curve.key).length);
  }
  for (const item of drawn) {
    if (!item.chart) continue;
    item.chart.data = item.build().data;
    item.chart.update("none");
  }
}

// Reward, drift and throughput of the last steps, with intervals, one under the other.
function comparisonCard() {
  const rowsOf = ([key, title, format]) => {
    const rows = [...chosen].map(([name, one]) => ({name, of: recent(valuesOf(one, key), kRecentSteps)}))
      .filter(({of}) => isNumber(of.value)).map(({name, of}) => ({name, bar: barTo(of), text: withBounds(of, format)}));
    if (!rows.length) return null;
    const bars = intervalRows(rows);
    bars.querySelectorAll(".row").forEach((node, i) => { node.querySelector(".bar").style.background = colour(tintOf(chosen.get(rows[i].name).slot)); });
    return el("div", {}, el("h4", {}, title), bars);
  };
  const parts = compared.map(rowsOf).filter(Boolean);
  if (!parts.length) return null;
  return card("Beside each other", `mean of the last ${kRecentSteps} steps, and 95 % from their spread over steps, which depend on each other`, el("div", {class: "grid beside"}, parts));
}
