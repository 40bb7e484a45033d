"use strict";
// The parts of the drift: waterfall, table, the four additive parts, splits by token class, all numbers.

const squareShare = (part) => interval(part.square_share);

// From the server's record to the trainer's. Each bar begins where the previous one ended.
function waterfall() {
  let reached = 0;
  const rows = attribution.parts.map((part) => {
    const share = squareShare(part).value;
    const row = {name: part.part, title: part.description, text: percentWithBounds(part.square_share), bar: barOver(part.square_share, reached)};
    reached += isNumber(share) ? share : 0;
    return row;
  });
  const total = attribution.total.mean_square;
  rows.push({name: "all", text: `${number(total.value)} nats\u00b2`, bar: {from: 0, to: reached}, strong: true});
  return card("Waterfall of the mean square", "% of mean(delta\u00b2), from the server's record (top) to the trainer's (bottom). Each bar begins where the one above ends; the line is its 95 % interval.", intervalRows(rows));
}

function partTable() {
  const bounds = (part) => (isNumber(part.square_share.first) ? `${percentNumber(part.square_share.first)} .. ${percentNumber(part.square_share.last)}` : "");
  return el("div", {class: "card"}, el("div", {class: "card-head"}, el("h3", {}, "Every part")),
    el("p", {class: "note"}, `Alone: mean |part| where nothing else is switched. Shares of the mean square, of k3 and of the tail (|delta| > ${number(attribution.total.tail_threshold)}) each add up to 100 %. First .. last: the share of the mean square when the part is switched before all others, and after them; far apart, parts interact.`),
    table([{name: "part", cell: (p) => el("div", {class: "part-name"}, el("b", {}, p.part), el("div", {class: "empty"}, p.description))}, {name: "mean abs alone, nats", num: true, cell: (p) => withBounds(p.mean_abs_alone)},
      {name: "mean, nats", num: true, cell: (p) => withBounds(p.mean)}, {name: "% of mean square", num: true, cell: (p) => percentWithBounds(p.square_share)},
      {name: "first .. last", num: true, cell: bounds}, {name: "% of k3", num: true, cell: (p) => percentWithBounds(p.k3_share)},
      {name: "% of tail", num: true, cell: (p) => percentWithBounds(p.tail_share)}], attribution.parts),
    el("p", {class: "note"}, compositionText()));
}

function compositionText() {
  const {alone, total} = attribution;
  const text = `Batch composition: ${alone.num_completions} completions (${alone.num_tokens} tokens), decoded one at a time, differ by at most ${number(alone.max_abs)}.`;
  return total.num_missing > 0 ? `${text} ${total.num_missing} tokens are left out because an ablation step could not score them.` : text;
}

function additiveCard() {
  const split = attribution.additive_split;
  const names = Object.keys(split).filter((key) => split[key] && split[key].mean_abs);
  return card("delta = record + engine + cast + staleness", "The coarse form, per token. Mean |part|, nats; these do not add up, the means do.",
    intervalRows(names.map((name) => ({name, text: withBounds(split[name].mean_abs), bar: barOver(split[name].mean_abs)}))),
    el("p", {class: "note"}, "mean: " + names.map((name) => `${name} ${withBounds(split[name].mean)}`).join("; ")));
}

function partsSection() {
  return section("parts", "Parts of the drift", "The same ids scored again in steps that change one thing each. Neighbours differ in one thing, so for every token the parts add up to its delta = log trainer - log server.",
    el("div", {class: "grid"}, waterfall(), additiveCard()), el("div", {class: "card below"}, ...partTable().childNodes));
}

const splitTitles = {length: "By length of the completion, tokens", position: "By tenth of the completion", entropy: "By entropy of the sampling distribution, nats", version_lag: "By version lag",
  place: "First, last and other tokens", advantage_sign: "By sign of the advantage", turn: "By turn"};

function splitCard(by, buckets) {
  const rows = (of) => intervalRows(buckets.map((bucket) => ({name: bucket.label, title: `${number(bucket.tokens, 9)} tokens`, text: withBounds(bucket[of]), bar: barTo(bucket[of])})));
  return card(splitTitles[by] || words(by), "mean |delta|, nats", rows("mean_abs_delta"), el("p", {class: "note second"}, "mean delta, nats"), rows("mean_delta"));
}

// A split with one bucket does not separate tokens; it only says in which bucket all of them are.
function splitSection() {
  const splits = Object.entries(attribution.splits);
  const several = splits.filter(([, buckets]) => buckets.length > 1), single = splits.filter(([, buckets]) => buckets.length === 1);
  const rest = single.length ? ` All tokens have ${listed(single.map(([by, [bucket]]) => `${words(by)} ${bucket.label}`))}.` : "";
  return section("splits", "Which tokens", `The same drift by kind of token. Intervals are 95 % over completions, and missing where fewer than 8 completions have such tokens.${rest}`,
    el("div", {class: "grid"}, several.map(([by, buckets]) => splitCard(by, buckets))));
}

function numberSection() {
  const {by_completion, by_group} = attribution.metrics;
  const rows = Object.keys(by_completion).map((name) => ({name, completion: by_completion[name], group: by_group[name]}));
  const cell = (number) => [withBounds(number), number && number.withheld ? el("div", {class: "empty"}, number.withheld) : null];
  return section("numbers", "Every number", "Before any clamp; delta = log pi_proximal - log pi_behaviour, w = e^delta. Formulas: docs/metrics.md.", el("div", {class: "card"}, el("details", {}, el("summary", {}, `${rows.length} numbers with intervals over completions and over groups`),
    table([{name: "number", tight: true, cell: (r) => r.name}, {name: "95 % by completion", num: true, cell: (r) => cell(r.completion)}, {name: "95 % by group", num: true, cell: (r) => cell(r.group)}], rows))));
}
