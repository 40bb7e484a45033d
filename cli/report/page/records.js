"use strict";
// The page of a records file: what the numbers of two engines show without weights. The data is the JSON
// of `tandem drift why RECORDS` with the additions of drift_lab/pages/screening_report.h.

const screened = pageData;
const effect = screened.training_effect;
const idWords = (id) => plain(id).replace(/_/g, " ");

const verdictBadges = {nothing_to_compare: ["nothing to compare", "warn"], identical: ["identical", "good"], numbers_alone: ["size of numbers alone", "good"],
  shown: ["fault shown", "warn"], needs_weights: ["needs weights", "plain"]};

function sideFacts(side) {
  const {engine, engine_version, dtype, temperature, logprobs} = screened.header[side] || {};
  return [engine || "engine not named", engine_version, dtype, isNumber(temperature) ? `temperature ${temperature}` : null, logprobs].filter(Boolean).join(" ");
}

function recordsTitle() {
  const [text, kind] = verdictBadges[screened.verdict] || [idWords(screened.verdict), "plain"];
  const parts = [`${number(screened.num_rows, 9)} rows, ${number(screened.num_drawn, 9)} drawn tokens, ${number(effect.num_tokens, 9)} with values of both sides`,
    `behaviour: ${sideFacts("behaviour")}`, `proximal: ${sideFacts("proximal")}`];
  return el("div", {id: "records"}, el("div", {class: "title-row"}, el("h1", {}, "What the records show"), el("span", {class: `badge ${kind}`}, text)),
    el("p", {class: "sub"}, parts.join("  \u00b7  ")));
}

function headlineSection() {
  return section("verdict", "Verdict", null, el("div", {class: "card"}, el("p", {class: "verdict"}, screened.headline),
    screened.command ? el("p", {}, el("b", {}, "Next: "), el("span", {class: "mono"}, screened.command)) : null,
    screened.notes.map((note) => el("p", {class: "note"}, note)),
    el("p", {class: "note"}, `Of a healthy record, the chance that any fault is shown is ${number(screened.false_alarm_rate)} at most.`)));
}

function effectSection() {
  if (!effect.num_tokens) return null;
  const of = (name, title, note, format = number) => {
    const value = interval(effect[name]);
    return effect[name] ? tile(title, format(value.value), "", [isKnown(value) ? `95 %: ${format(value.low)} to ${format(value.high)}` : "", note].filter(Boolean).join("; ")) : null;
  };
  return section("training", "What it does to training", "If nothing corrects it. w = e^delta is the weight of an exact correction, delta = log proximal - log behaviour; intervals are over rows.",
    el("div", {class: "tiles"}, of("mean_abs_delta", "Mean abs delta, nats", ""), of("k3", "k3 = mean(w - 1 - delta)", ""), of("ess_fraction", "Effective sample size", "", percent),
      of("mean_w", "Mean weight w", "1 where no token is left out", (value) => number(value, 5)), of("truncated_share", "w above 2", "truncated at 2", (value) => percent(value, 2)),
      of("clipped_share", "w outside 0.8 .. 1.2", "outside the clip", (value) => percent(value, 2)),
      of("gradient_missing_positive_advantage", "Gradient missing, A > 0", "sum |A| (w - 1) / sum |A|", (value) => percent(value, 2)),
      of("gradient_missing_negative_advantage", "Gradient missing, A < 0", "below 0: too much", (value) => percent(value, 2)),
      tile("Abs delta, 99.9 %", number(effect.abs_delta_p99_9), "", `median ${number(effect.abs_delta_p50)}, most ${number(effect.max_abs_delta)}`)));
}

function densityCard() {
  const {limit, counts, outside} = screened.density;
  const width = 2 * limit / counts.length;
  const labels = counts.map((_, bin) => number(-limit + (bin + .5) * width, 2));
  return barCard("How delta is distributed", `Tokens in bins of ${number(width, 2)} nats, on a logarithmic scale. ${number(outside, 9)} tokens lie outside. A filter leaves nothing to the right of 0.`, labels,
    [["tokens", counts.map((count) => count || null), "blue"]], {x: "delta, nats", y: "tokens", log: true});
}

function scatterCard() {
  const {points, every} = screened.scatter;
  return chartCard("Delta against log-prob", `${every > 1 ? `Every ${every}th token. ` : ""}A temperature or another base of logs makes a line or a fan; a lattice makes stripes.`, [], () => ({
    type: "scatter",
    data: {datasets: [{label: "delta", data: points.map(([x, y]) => ({x, y})), backgroundColor: faint("blue", .45), pointRadius: 1.8, pointHoverRadius: 4}]},
    options: {scales: {x: axis("log behaviour, nats", {type: "linear"}), y: axis("delta, nats", {type: "linear"})}},
  }));
}

function curveCard(key, title, note, x) {
  const curve = screened[key];
  if (!curve || curve.x.length < 2) return null;
  const sizes = () => curve.x.map((at, bin) => ({x: at, y: curve.mean_abs[bin][0], low: curve.mean_abs[bin][1], high: curve.mean_abs[bin][2]}));
  const means = () => curve.x.map((at, bin) => ({x: at, y: curve.mean[bin]}));
  return chartCard(title, note, [["mean |delta|", "blue"], ["mean delta", "orange", true]], () => ({
    type: "line",
    data: {datasets: [...band("mean |delta|", sizes(), "blue"), band("mean delta", means(), "orange", {dashed: true})[0]]},
    options: {scales: {x: axis(x, {type: "linear", grid: false}), y: axis("nats", {suggestedMin: 0})}},
  }));
}

function curveSection() {
  if (!effect.num_tokens) return null;
  return section("curves", "Where the sides differ", "Each point of a curve has about as many tokens as the others; the band is twice the standard error, as if tokens were independent.",
    el("div", {class: "grid"}, densityCard(), scatterCard(),
      curveCard("by_position", "By position", "Growth along rows: a window, a rotary base, a rounded cache.", "drawn tokens before it"),
      curveCard("by_logprob", "By log-prob", "Uncertain tokens differ more, whatever the cause.", "log behaviour, nats"),
      curveCard("by_length", "By length", "", "drawn tokens of the row"), curveCard("by_step", "By train step", "Growth: weights that are not delivered, or staleness.", "train step")));
}

function worstTokensSection() {
  const worst = screened.worst || [];
  if (!worst.length) return null;
  const full = Math.max(effect.abs_delta_p99_9, 1e-6);
  return section("worst", "Worst tokens", "The tokens with the largest |delta|, in context.", el("div", {class: "card"}, table([
    {name: "delta", num: true, cell: (r) => number(r.delta)}, {name: "token in context", cell: (r) => contextNode(visible(r.before), r.token, visible(r.after), r.delta, full)},
    {name: "id", num: true, cell: (r) => plain(r.id)}, {name: "behaviour's probability", num: true, cell: (r) => number(Math.exp(r.behaviour))},
    {name: "proximal's", num: true, cell: (r) => number(Math.exp(r.proximal))}, {name: "row", cell: (r) => plain(r.row)}, {name: "position", num: true, cell: (r) => plain(r.position)}], worst, true)));
}

const signVerdict = (sign) => el("span", {class: `badge ${sign.accuses ? "warn" : sign.verdict === "ruled_out" ? "good" : "plain"}`}, sign.accuses ? "fault shown" : idWords(sign.verdict));

function signSection() {
  return section("signs", "Signs", "Everything that was looked for. \"Cannot tell\" is an answer: the records lack what the test needs.", el("div", {class: "card"}, table([
    {name: "sign", tight: true, cell: (s) => idWords(s.sign)}, {name: "verdict", tight: true, cell: signVerdict}, {name: "side", tight: true, cell: (s) => (s.side === "unknown" ? "" : s.side)},
    {name: "evidence", cell: (s) => [s.statement, s.command && (s.accuses || s.verdict === "needs_weights") ? el("div", {class: "formula"}, s.command) : null]},
    {name: "statistic", cell: (s) => (s.value && isNumber(s.value.value) ? el("span", {title: s.statistic}, withBounds(s.value)) : "")},
    {name: "false alarms", num: true, cell: (s) => (isNumber(s.false_alarm_rate) ? number(s.false_alarm_rate, 2) : "")}], screened.signs)));
}

function buildPage() {
  const sections = [headlineSection(), effectSection(), curveSection(), worstTokensSection(), signSection()].filter(Boolean);
  document.getElementById("page").replaceChildren(recordsTitle(), ...sections,
    el("footer", {}, `Written by tandem drift why --html from ${screened.records}. How to read this page: docs/foreign_engines.md.`));
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
  document.body.append(tip);
}

buildPage();
startTheme();
