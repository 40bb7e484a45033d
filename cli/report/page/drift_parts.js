"use strict";
// Drift by kind of token, by part and on the frozen probe set, and the captures with more detail.

// Labels of buckets in their order: numbers ascending, names in a fixed order.
const namedBuckets = ["first", "between", "last", "positive", "negative", "zero"];
function byBucket(a, b) {
  const rank = (label) => (Number.isNaN(parseFloat(label)) ? 1e12 + namedBuckets.indexOf(label) : parseFloat(label));
  return rank(a) - rank(b);
}

const bucketTints = ["blue", "orange", "green", "red", "pink", "sky", "yellow", "grey"];

// One band per bucket over steps, of version lags and of turns. A single bucket would equal the curve of all tokens.
const bucketsOverSteps = [
  ["by_version_lag", "version lag", "lag", "by versions between the weights that drew a token and those that train on it"],
  ["by_turn", "turn", "turn", "by the turn of the completion that drew a token"],
];

function bucketCards() {
  const cards = bucketsOverSteps.flatMap(([split, title, name, note]) => [["k3", "k3"], ["mean_abs_delta", "Mean abs delta"]].map(([measure, measured]) => {
    const buckets = runData.drift[split][measure];
    const labels = Object.keys(buckets).sort(byBucket);
    if (labels.length < 2) return null;
    const at = (label) => buckets[label].map((of, i) => ({x: runData.steps[i], y: of && of[0], low: of && of[1], high: of && of[2]}));
    return chartCard(`${measured} by ${title}`, `${note}; 95 % intervals over completions`,
      labels.map((label, i) => [`${name} ${label}`, bucketTints[i % bucketTints.length], i >= bucketTints.length]), () => ({
        type: "line",
        data: {datasets: labels.flatMap((label, i) => band(`${name} ${label}`, at(label), bucketTints[i % bucketTints.length], {dashed: i >= bucketTints.length}))},
        options: {scales: {x: stepAxis(), y: axis("nats", {suggestedMin: 0})}},
      }));
  }));
  return cards.filter(Boolean);
}

// The additive split of the steps that measured it. Shares and means add up, so they are stacked;
// absolute values do not.
const splitParts = [["record", "grey"], ["engine", "orange"], ["cast", "blue"], ["staleness", "red"]];
const splitMeasures = [["square_share", "share of the mean square", "share"], ["mean", "mean of each part", "nats"], ["mean_abs", "mean |part|", "nats"]];

function splitPartCards() {
  return splitMeasures.map(([measure, title, unit]) => {
    const lines = splitParts.map(([part, tint]) => [`drift/split/${part}_${measure}`, part, tint]).filter(([key]) => hasSeries(key));
    if (!lines.length) return null;
    const note = "delta = record + engine + cast + staleness, per token, on the steps that measured it";
    if (measure === "mean_abs") return bandCard(`Parts of the drift: ${title}`, note + "; 95 % intervals over completions", lines, {title: unit, suggestedMin: 0});
    const at = runData.steps.map((_, i) => i).filter((i) => lines.some(([key]) => isNumber(series(key)[i])));
    return barCard(`Parts of the drift: ${title}`, note + "; they add up", at.map((i) => runData.steps[i]), lines.map(([key, part, tint]) => [part, at.map((i) => series(key)[i]), tint]),
      {stacked: true, x: "train step", y: unit});
  });
}

// Whether the numerics got worse or the policy visits harder tokens, and whether the weights arrived.
function probeCards() {
  const measures = [["k3", "k3", "nats"], ["mean_abs_delta", "mean abs delta", "nats"]];
  return [...measures.map(([measure, title, unit]) => !hasSeries(`drift/probe/${measure}`) ? null : bandCard(`Frozen probe set: ${title}`,
    "The probe's tokens never change: when its curve rises, numerics or delivery got worse. Visitation shift = fresh less probe at the versions that drew the step's tokens: when it rises, the policy visits harder tokens. 95 % intervals",
    [[`drift/${measure}`, "fresh tokens", "orange", {dashed: true}], [`drift/probe/${measure}`, "probe set", "blue"], [`drift/visitation/${measure}`, "visitation shift", "green"]], {title: unit})),
    bandCard("Delivery", "how much of the drift on the probe set is explained by the distance from the initial weights (undelivered) and by the last push (late); an interval above 0 means that weights do not arrive",
      [["drift/delivery/undelivered", "undelivered", "red"], ["drift/delivery/late", "late", "orange", {dashed: true}]], {level: ["0", 0]})];
}

// Splits of the last step, each bucket with its interval.
const splitNames = {length: "length of the completion, tokens", position: "tenth of the completion", entropy: "entropy of the sampling distribution, nats", version_lag: "version lag", place: "place", advantage_sign: "sign of the advantage", turn: "turn"};
function lastSplits() {
  const last = Object.entries(runData.drift.last);
  if (!last.length) return null;
  const rows = ({buckets}) => Object.keys(buckets).sort(byBucket).map((label) => ({name: label, title: `${number(buckets[label].tokens, 9)} tokens`, text: withBounds(buckets[label].mean_abs_delta), bar: barTo(buckets[label].mean_abs_delta)}));
  return el("div", {class: "card", id: "last-splits"}, el("details", {}, el("summary", {}, `Mean abs delta by what a token is, step ${Math.max(...last.map(([, {step}]) => step))}`),
    el("div", {class: "grid"}, last.map(([by, split]) => card(`By ${splitNames[by] || by}`, "mean |delta|, nats; 95 % interval over completions", intervalRows(rows(split)))))));
}

function captureCard() {
  const {captures, run_directory} = runData;
  if (!captures.length) return null;
  const folder = run_directory ? run_directory.split("/").map(encodeURIComponent).join("/") : null;
  const name = (capture) => `captures/step_${capture.step}`;
  const link = (capture) => (capture.page && folder ? el("a", {href: `${folder}/${name(capture)}/attribution.html`}, "attribution: the parts of this drift")
    : el("span", {class: "formula"}, `tandem drift attribute ${name(capture)} --html ${name(capture)}/attribution.html`));
  return el("div", {class: "card", id: "captures"}, el("div", {class: "card-head"}, el("h3", {}, "Captures")),
    el("p", {class: "note"}, "Batches saved with everything that is needed to score their tokens again. An attribution does so, one change at a time."),
    table([{name: "step", num: true, cell: (c) => c.step}, {name: "", cell: link}], captures));
}
