"use strict";
// The page of a records file: what the numbers of two engines show without weights and, where a model was
// given, which side is off and why. The data is the JSON of `tandem drift why RECORDS` with the additions of
// drift_lab/pages/screening_report.h.

const screened = pageData;
const effect = screened.training_effect;
const referee = screened.referee;  // undefined: no model was given
const idWords = (id) => plain(id).replace(/_/g, " ");

const verdictBadges = {nothing_to_compare: ["nothing to compare", "warn"], identical: ["identical", "good"], numbers_alone: ["size of numbers alone", "good"],
  shown: ["fault shown", "warn"], needs_weights: ["needs weights", "plain"]};
const sideBadges = {no_values: ["no log-probs", "plain"], same_numbers: ["the model's own numbers", "good"], rounding: ["rounding only", "good"],
  named: ["cause named", "warn"], one_of: ["one of several causes", "warn"], unknown: ["off, not explained", "warn"]};
const badge = ([text, kind]) => el("span", {class: `badge ${kind}`}, text);
const sideBadge = (side) => sideBadges[side.status] || [idWords(side.status), "plain"];
const suspects = (count) => `${number(count, 9)} ${count === 1 ? "suspect" : "suspects"}`;
const isOff = (side) => ["named", "one_of", "unknown"].includes(side.status);
const drawnOtherwise = (side) => side.draws && !side.draws.follow_claims;

function sideFacts(side) {
  const {engine, engine_version, dtype, temperature, logprobs} = screened.header[side] || {};
  return [engine || "engine not named", engine_version, dtype, isNumber(temperature) ? `temperature ${temperature}` : null, logprobs].filter(Boolean).join(" ");
}

// What the page as a whole says: the referee's verdict where there is one.
function pageBadge() {
  const alone = verdictBadges[screened.verdict] || [idWords(screened.verdict), "plain"];
  if (!referee) return alone;
  const off = referee.sides.filter(isOff);
  if (off.length) return off.some((side) => side.status === "named") ? ["cause named", "warn"] : ["a side is off", "warn"];
  if (referee.sides.some(drawnOtherwise)) return ["drawn otherwise than claimed", "warn"];
  const claims = referee.sides.filter((side) => side.status !== "no_values").map((side) => side.claimed);
  if (claims.some((claimed) => claimed !== claims[0])) return ["two distributions", "warn"];
  return screened.verdict === "shown" ? alone : ["no side is off", "good"];
}

function recordsTitle() {
  const parts = [`${number(screened.num_rows, 9)} rows, ${number(screened.num_drawn, 9)} drawn tokens, ${number(effect.num_tokens, 9)} with values of both sides`,
    `behaviour: ${sideFacts("behaviour")}`, `proximal: ${sideFacts("proximal")}`];
  return el("div", {id: "records"}, el("div", {class: "title-row"}, el("h1", {}, "What the records show"), badge(pageBadge())),
    el("p", {class: "sub"}, parts.join("  \u00b7  ")));
}

const sideName = (side) => `${side.side[0].toUpperCase()}${side.side.slice(1)} side${side.engine ? ` (${side.engine})` : ""}`;

// What is wrong with a side, with the share of the squared difference that it explains.
function causeSentence(side) {
  const explained = (cause) => `${cause.text} (explains ${percentWithBounds(cause.explained_share)})`;
  if (side.status === "named") return `${sideName(side)}: ${side.causes.map(explained).join("; and ")}.`;
  if (side.status === "one_of") return `${sideName(side)}: one of ${side.causes.map(explained).join("; or ")}.`;
  return side.status === "unknown" ? `${sideName(side)}: none of ${suspects(side.num_tried)} explains it.` : null;
}

// [who, what, options of the engine], each action once. What the numbers alone advise is left out where the referee
// knows better: the next step of the numbers is often the referee, and a sign may not know its side.
function actions() {
  const found = [];
  const add = (who, what, options) => { if (what && !found.some((action) => action[1] === what)) found.push([who, what, options]); };
  const named = referee ? referee.sides.filter((side) => side.status === "named").map((side) => side.side) : [];
  if (referee) for (const side of referee.sides) add(sideName(side), side.advice || (drawnOtherwise(side) ? "compare the settings of the sampler with what is recorded of them" : ""), side.options);
  if (!named.length && !(referee && screened.command.startsWith("tandem drift why "))) add("by the numbers", screened.command);
  for (const sign of screened.signs) if (sign.accuses && (!named.length || named.includes(sign.side))) add(idWords(sign.sign), sign.command);
  return found;
}

function toDo() {
  const found = actions(), nothing = referee && pageBadge()[1] === "good";
  if (!found.length && !nothing) return null;
  const what = ([, text, options]) => el("span", {}, text.startsWith("tandem ") ? el("span", {class: "mono"}, text) : text,
    options ? el("div", {}, "options of ", el("span", {class: "mono"}, options)) : null);
  return el("div", {class: "to-do"}, el("h3", {}, "What to do"), found.length ? facts(found.map((action) => [action[0], what(action)]))
    : el("div", {}, "There is nothing to repair. Where the effect on training below is too large, a correction in the loss takes it away."));
}

function headlineSection() {
  const size = effect.num_tokens ? `Mean |delta| is ${withBounds(effect.mean_abs_delta)} nats a token, the effective sample size ${percentWithBounds(effect.ess_fraction)} (95 %, over rows).` : null;
  return section("verdict", "Verdict", null, el("div", {class: "card"},
    el("p", {class: "verdict"}, referee ? [referee.headline, ...referee.sides.map(causeSentence)].filter(Boolean).join(" ") : screened.headline),
    size ? el("p", {}, size) : null, toDo(), referee ? el("p", {class: "note"}, el("b", {}, "By the numbers alone: "), screened.headline) : null,
    screened.notes.map((note) => el("p", {class: "note"}, note)),
    el("p", {class: "note"}, `Of a healthy record, the chance that the numbers alone show any fault is ${number(screened.false_alarm_rate)} at most.`)));
}

// The gap as two differences from the model, beside the size of rounding.
function splitCard() {
  const rounding = referee.bf16_mean_abs, known = referee.sides.filter((side) => side.status !== "no_values");
  const rows = known.map((side) => {
    const {mean_abs: size, times_bf16: times} = side.gap;
    return {name: side.side === "behaviour" ? "behaviour - referee" : "referee - proximal", text: `${number(size)} nats` + (isNumber(times) && rounding > 0 ? `, ${number(times)} \u00d7 bf16` : ""),
      title: side.sentence, bar: isOff(side) ? {from: 0, to: size} : {from: size, to: 0}};
  });
  if (effect.num_tokens) rows.push({name: "behaviour - proximal", text: `${withBounds(effect.mean_abs_delta)} nats`, bar: barTo(effect.mean_abs_delta), strong: true, kind: "whole"});
  const limits = referee.most_rounding;
  const [title, note] = known.length > 1 ? ["The gap, split by side", " The two differences add up token by token; their sizes do not."] : ["The distance from the model", ""];
  return card(title, `Mean |difference| in nats.${note}`, intervalRows(rows, 0, {band: rounding > 0 ? [0, rounding] : []}),
    rounding > 0 ? el("p", {class: "note"}, `Shaded: what rounding to bf16 does to this model, ${number(rounding)} nats a token.`,
      limits ? ` A side is called healthy up to ${number(limits.times_bf16)} \u00d7 bf16, token by token of like log-prob, with at most ${percent(limits.tail_share)} of its tokens beyond five times it. In that number a token counts as at most ten times.` : "") : null,
    table([{name: "side", tight: true, cell: sideName}, {name: "mean |difference|", num: true, cell: (s) => number(s.gap.mean_abs)}, {name: "mean (side - referee)", num: true, cell: (s) => number(s.gap.mean)},
      {name: "rms", num: true, cell: (s) => number(s.gap.rms)}, {name: "largest", num: true, cell: (s) => number(s.gap.largest)}, {name: "\u00d7 bf16", num: true, cell: (s) => number(s.gap.times_bf16)},
      {name: "beyond 5 \u00d7 bf16", num: true, cell: (s) => percent(s.gap.tail_share)}, {name: "correlation with bf16", num: true, cell: (s) => number(s.gap.correlation_with_bf16, 2)},
      {name: "tokens", num: true, cell: (s) => number(s.gap.num_tokens)}], known));
}

const causeTitles = {named: "The cause", one_of: "The candidates", unknown: "The nearest of the suspects, which is no finding"};

function causeRows(side) {
  if (!side.causes.length) return null;
  const rows = side.causes.map((cause) => ({name: [el("b", {}, cause.text), el("div", {class: "empty"}, `${idWords(cause.cause)}; strength ${withBounds(cause.coefficient)} of what it predicts; leaves ${number(cause.left.mean_abs)} nats`)],
    text: percentWithBounds(cause.explained_share), bar: barOver(cause.explained_share)}));
  const list = intervalRows(rows, 0, {reach: 1});
  list.classList.add("causes");
  return [el("p", {class: "note second"}, `${causeTitles[side.status] || "Causes"}, and the share of the squared difference explained, on rows that were not used to find it:`), list];
}

function sideCard(side) {
  const head = el("div", {class: "card-head"}, el("h3", {}, sideName(side)), badge(sideBadge(side)));
  if (side.status === "no_values") return el("div", {class: "card"}, head, el("p", {}, "The records have no log-probs of this side."));
  const tried = side.tried.map(idWords).join(", ");
  return el("div", {class: "card"}, head, el("p", {}, side.sentence), causeRows(side), facts([
    ["claims log-probs of", side.claimed], ["draws", side.draws && side.draws.sentence],
    ["tried", side.num_tried ? `${suspects(side.num_tried)}${tried ? `: ${tried}` : ""}` : "nothing: there was nothing to explain"],
    ["not tried", side.num_left ? `${suspects(side.num_left)}, for want of time` : null]]));
}

function sideSection() {
  if (!referee) return null;
  const weights = referee.weights ? `, beside the weights of ${referee.weights}` : "";
  return section("sides", "Which side, and why", `${referee.model}${weights} scored ${number(referee.num_tokens, 9)} of ${number(referee.num_drawn, 9)} drawn tokens in ${number(referee.num_rows, 9)} rows here, in fp32 and in bf16, as the referee, in ${duration(referee.seconds)}. ` +
    "behaviour - proximal = (behaviour - referee) + (referee - proximal).", splitCard(), el("div", {class: "grid"}, referee.sides.map(sideCard)));
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
      tile("Abs delta, 99.9 %", number(effect.abs_delta_p99_9), "", `median ${number(effect.abs_delta_p50)}, most ${number(effect.max_abs_delta)}`)),
    effect.gradient_missing_positive_advantage ? null : el("p", {class: "empty"}, "The records have no advantages, so that the expected bias of GRPO's gradient by their sign is not known."));
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
      curveCard("by_entropy", "By entropy", "Growth: rounding and temperature do most where the model is uncertain.", `entropy by the ${screened.entropy_of} side, nats`),
      curveCard("by_length", "By length", "", "drawn tokens of the row"), curveCard("by_step", "By train step", "Growth: weights that are not delivered, or staleness.", "train step")));
}

function worstTokensSection() {
  const worst = screened.worst || [];
  if (!worst.length) return null;
  const full = Math.max(effect.abs_delta_p99_9, 1e-6);
  const isText = worst.some((r) => r.token !== `<${r.id}>`);
  return section("worst", "Worst tokens", `The tokens with the largest |delta|, in context.${isText ? "" : " Their ids, because no tokenizer was found: --model DIR gives the text."}`, el("div", {class: "card"}, table([
    {name: "delta", num: true, cell: (r) => number(r.delta)}, {name: "token in context", cell: (r) => contextNode(visible(r.before), r.token, visible(r.after), r.delta, full)},
    {name: "id", num: true, cell: (r) => plain(r.id)}, {name: "behaviour's probability", num: true, cell: (r) => number(Math.exp(r.behaviour))},
    {name: "proximal's", num: true, cell: (r) => number(Math.exp(r.proximal))}, {name: "row", cell: (r) => plain(r.row)}, {name: "position", num: true, cell: (r) => plain(r.position)}], worst, true)));
}

const signVerdict = (sign) => el("span", {class: `badge ${sign.accuses ? "warn" : sign.verdict === "ruled_out" ? "good" : "plain"}`}, sign.accuses ? "fault shown" : idWords(sign.verdict));

function signSection() {
  return section("signs", "Signs", "Everything that was looked for. \"Cannot tell\" is an answer: the records lack what the test needs.", el("div", {class: "card"}, table([
    {name: "sign", tight: true, cell: (s) => idWords(s.sign)}, {name: "verdict", tight: true, cell: signVerdict}, {name: "side", tight: true, cell: (s) => (s.side === "unknown" ? "" : s.side)},
    {name: "evidence", cell: (s) => [s.statement, s.command && (s.accuses || s.verdict === "needs_weights") ? el("div", {class: "formula wrap"}, s.command) : null]},
    {name: "statistic", cell: (s) => (s.value && isNumber(s.value.value) ? el("span", {title: s.statistic}, withBounds(s.value)) : "")},
    {name: "false alarms", num: true, cell: (s) => (isNumber(s.false_alarm_rate) ? number(s.false_alarm_rate, 2) : "")}], screened.signs)));
}

function buildPage() {
  const sections = [headlineSection(), sideSection(), effectSection(), curveSection(), worstTokensSection(), signSection()].filter(Boolean);
  document.getElementById("page").replaceChildren(recordsTitle(), ...sections,
    el("footer", {}, `Written by tandem drift why --html from ${screened.records}. How to read this page: docs/foreign_engines.md.`));
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
  document.body.append(tip);
}

buildPage();
startTheme();
