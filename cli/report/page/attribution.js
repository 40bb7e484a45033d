"use strict";
// The first part of the page of an attribution: the verdict in words and its evidence, or why nothing
// could be measured. The data is the JSON of `tandem drift attribute` with the additions of
// drift_lab/pages/attribution_report.h.

const attribution = pageData;
const described = new Map((attribution.parts || []).map((part) => [part.part, part.description]));
const words = (name) => plain(name).replace(/_/g, " ");

function verdictBadge() {
  if (!attribution.comparable) return ["not comparable", "warn"];
  const {nothing_to_explain, named, open} = attribution.verdict;
  if (named.length) return [`${named.length} ${named.length === 1 ? "cause" : "causes"} named`, "plain"];
  if (open.length) return ["open", "warn"];
  return nothing_to_explain ? ["nothing to explain", "good"] : ["no cause named", "warn"];
}

const listed = (items) => (items.length < 2 ? items.join("") : items.slice(0, -1).join(", ") + " and " + items[items.length - 1]);

// How large the drift is, and whether it is more than rounding.
function driftText() {
  const {verdict, total} = attribution;
  const drift = number(total.mean_abs.value);
  if (!verdict.nothing_to_explain) return `Server and trainer differ by ${drift} nats per token on average.`;
  return total.mean_abs.value === 0 ? "Server and trainer agree exactly on every token."
    : `Server and trainer differ by ${drift} nats per token on average, which is within the rounding of fp32 log-probs.`;
}

// For example "current weights and the weights that sampled the token (staleness)" or "temperature 0.9".
const causeName = (cause) => cause.label || (described.has(cause.cause) ? `${described.get(cause.cause)} (${cause.cause})` : words(cause.cause));

function verdictText() {
  if (!attribution.comparable) return "Not comparable. What the trainer would score is not what the server sampled: a discrete fault, not drift. No drift number is given.";
  const {verdict} = attribution;
  const share = (cause) => interval(cause.square_share).value;
  const inDrift = verdict.named.filter((cause) => share(cause) !== 0), ofDraws = verdict.named.filter((cause) => share(cause) === 0);
  const sentences = [driftText()];
  if (inDrift.length) {
    const [first, ...rest] = inDrift;
    sentences.push(`Largest named cause: ${causeName(first)}, ${percentNumber(share(first))} % of the mean square.`);
    if (rest.length) sentences.push(`Then ${listed(rest.map((cause) => `${cause.label || cause.cause} ${percentNumber(share(cause))} %`))}.`);
    if (isNumber(interval(verdict.unexplained_square_share).value)) sentences.push(`Unexplained: ${percentWithBounds(verdict.unexplained_square_share)}.`);
  } else if (verdict.nothing_to_explain) {
    sentences.push("There is nothing to explain" + (ofDraws.length || verdict.open.length ? " in the log-probs." : "."));
  } else {
    sentences.push("No cause of it is named.");
  }
  if (ofDraws.length) sentences.push(`But the tokens were not sampled from the recorded distribution: ${listed(ofDraws.map(causeName))}.`);
  if (verdict.open.length) sentences.push("Open questions, and the measurements that would decide them, are listed below.");
  return sentences.join(" ");
}

// A value of the JSON as text: an interval, a number, or unchanged.
function anyValue(value) {
  if (value && typeof value === "object" && "value" in value) return withBounds(value);
  return isNumber(value) ? number(value, 4) : typeof value === "boolean" ? (value ? "yes" : "no") : plain(value);
}

// The fields of a record that are not in `known`: "strength 0.9 [0.8, 1.1], ...".
const extras = (record, known) => Object.entries(record).filter(([key]) => !known.includes(key)).map(([key, value]) => `${words(key)} ${anyValue(value)}`).join(", ");

// The strength of a cause that has a fault parameter.
function strengthText(cause) {
  if (!cause.strength || !isNumber(interval(cause.strength).value) || cause.strength_kind === "none") return null;
  return `strength ${withBounds(cause.strength, (value) => number(value, 4))}` + (cause.strength_kind === "exact" ? " (bounds: values that give the same record)" : "");
}

function causeNote(cause) {
  const evidence = plain(cause.evidence), meaning = described.get(cause.cause);
  return [meaning && !evidence.startsWith(meaning) ? meaning : null, evidence, strengthText(cause),
    extras(cause, ["cause", "label", "square_share", "evidence", "strength", "strength_kind"])].filter(Boolean).join("; ");
}

function namedRows(verdict) {
  const row = (name, note, share) => ({name: [el("b", {}, name), el("div", {class: "empty"}, note)], text: share && share.value === 0 && !isKnown(share) ? "not in delta" : percentWithBounds(share), bar: barOver(share)});
  const rows = verdict.named.map((cause) => row(cause.label || cause.cause, causeNote(cause), cause.square_share));
  if (isNumber(interval(verdict.unexplained_square_share).value)) rows.push(row("unexplained", "what no named cause carries, at least", verdict.unexplained_square_share));
  if (!rows.length) return null;
  const list = intervalRows(rows);
  list.classList.add("causes");
  return list;
}

// The work of the diagnosis of the record, if there was any.
function recordCard() {
  const {record} = attribution;
  if (!record || (record.num_hypotheses === 0 && !record.draws.candidates.length && !record.noise)) return null;
  const fit = (of) => `mean abs ${number(of.mean_abs)}, ${percent(of.matched_share)} of tokens reproduced exactly`;
  const {noise, draws} = record;
  const node = card("Inside the record", "The server's record, compared with replays of the same ids under hypotheses about what the server really did.", facts([
    ["hypotheses replayed", record.num_hypotheses], ["as claimed", fit(record.before)], ["with the named causes", fit(record.after)], ["explained", record.explained ? "yes" : "no"],
    ["noise on the logits", noise ? `${noise.believed ? "believed" : "not believed"}: sigma ${withBounds(noise.sigma)}, distance ${number(noise.distance)} of at most ${number(noise.largest_distance)}` : null],
    ["tail of the noise", noise && interval(noise.tail_probability).value > 0 ? `share ${withBounds(noise.tail_probability)}, ${withBounds(noise.tail_factor)} times as large` : null],
    ["calibration of the samples", `z ${number(draws.z)}`]]),
    draws.candidates.length ? table([{name: "samples under", cell: (c) => c.label || c.cause}, {name: "likelier by, nats", num: true, cell: (c) => number(c.gain_nats)}], draws.candidates) : null);
  node.classList.add("below");
  return node;
}

// Tables of the lists of records that this page does not know by name.
function otherRecords(object, known) {
  return Object.entries(object).filter(([key, value]) => !known.includes(key) && Array.isArray(value) && value.length && value.every((item) => item && typeof item === "object" && !Array.isArray(item)))
    .map(([key, records]) => {
      const fields = [...new Set(records.flatMap((record) => Object.keys(record)))];
      return el("div", {class: "card below"}, el("div", {class: "card-head"}, el("h3", {}, words(key))),
        table(fields.map((field) => ({name: words(field), cell: (record) => (field in record ? anyValue(record[field]) : "")})), records));
    });
}

function injectedBlock() {
  if (!attribution.injected.length) return null;
  return el("div", {class: "notice", role: "status"}, el("strong", {}, "Faults were injected into this capture"),
    el("ul", {}, attribution.injected.map((fault) => el("li", {}, fault))));
}

function attributionTitle() {
  const {about} = attribution;
  const [text, kind] = verdictBadge();
  const numerics = (part) => [part.dtype, part.numerics, part.instruction_set ? `(${part.instruction_set})` : ""].filter(Boolean).join(" ");
  const facts = [about.run_id ? `run ${about.run_id}` : null, `${attribution.num_completions} completions in ${attribution.num_groups} groups, ${number(attribution.num_tokens, 9)} tokens`,
    ...about.servers.map((server) => `server ${numerics(server)}`), about.trainer.dtype ? `trainer ${numerics(about.trainer)}` : "trainer not recorded, scored here in fp32"];
  return el("div", {id: "attribution"}, el("div", {class: "title-row"}, el("h1", {}, about.source === "server" ? "Attribution of a server's capture" : `Attribution of step ${attribution.step}`), el("span", {class: `badge ${kind}`}, text)),
    el("p", {class: "sub"}, facts.filter(Boolean).join("  \u00b7  ")));
}

function verdictSection() {
  const {verdict} = attribution;
  return section("verdict", "Verdict", null, el("div", {class: "card"}, el("p", {class: "verdict"}, verdictText()), verdict ? namedRows(verdict) : null,
    ((verdict && verdict.open) || []).map((question) => el("div", {class: "open"}, el("p", {}, el("b", {}, "Open: "), plain(question.what)),
      el("p", {}, el("b", {}, "What would decide: "), plain(question.deciding_measurement)), extras(question, ["what", "deciding_measurement"]) ? el("p", {class: "empty"}, extras(question, ["what", "deciding_measurement"])) : null)),
    verdict ? el("p", {class: "note"}, "A cause is named when its share is at least 2 %, the 95 % interval of the share excludes 0, and the part is larger than the rounding of fp32 log-probs. Shares are of the mean square of delta.") : null),
  verdict ? otherRecords(verdict, ["named", "open"]) : [], otherRecords(attribution, ["findings", "parts", "worst", "injected"]), verdict ? recordCard() : null);
}

function gateSection() {
  return section("gate", "What the gate found", "Checked before anything is measured: ids, lengths, log-probs, versions, settings, the model and the weights that servers proved to run.",
    attribution.findings.map((finding) => el("div", {class: "card alert"}, el("div", {class: "card-head"}, el("h3", {}, words(finding.fault)),
      el("span", {class: "formula"}, `${finding.num_completions} of ${attribution.num_completions} completions`)), el("div", {}, plain(finding.message)))));
}

function driftTiles() {
  const metrics = attribution.metrics.by_completion;
  const of = (name, title, note, format = number) => {
    const value = interval(metrics[name]);
    return tile(title, format(value.value), "", isKnown(value) ? `95 %: ${format(value.low)} to ${format(value.high)}` : note || (metrics[name] && metrics[name].withheld) || "");
  };
  return el("div", {class: "tiles"}, [
    of("mean_abs_delta", "Mean abs delta, nats"), of("k3", "k3 = mean(w - 1 - delta)"), of("ess_fraction", "Effective sample size", "", percent), of("mean_w", "Mean weight w", "", (value) => number(value, 5)),
    of("max_abs_delta", "Max abs delta, nats", "largest single token"), of("abs_delta_p99", "99 % of abs delta under", ""), of("log_ppl_gap", "Log-perplexity gap"),
    of("calibration_z", "Sampler calibration z", "beyond \u00b12.58 one honest capture in a hundred")]);
}

