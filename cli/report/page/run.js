"use strict";
// The first part of the page: title, notices, tiles, the card of the run, and alerts.

const runData = pageData;

const stateNames = {finished: ["finished", "finished"], stopped: ["stopped", "stopped"], "in progress": ["running", "no end recorded"]};

function titleBlock() {
  const run = runData.run;
  const [kind, text] = stateNames[runData.state] || stateNames["in progress"];
  const facts = [run.model && run.model.path ? `model ${run.model.path}` : null, run.started_at ? `started ${run.started_at}` : null,
    isNumber(runData.headline.seconds) ? `${duration(runData.headline.seconds)} recorded` : null];
  return el("div", {id: "run"}, el("div", {class: "title-row"}, el("h1", {}, plain(run.run_id) === "-" ? "Run" : run.run_id), el("span", {class: `badge ${kind}`}, text)),
    el("p", {class: "sub"}, facts.filter(Boolean).join("  ·  ")));
}

function noticeBlock() {
  if (!runData.notices.length) return null;
  return el("div", {class: "notice", role: "status"}, el("strong", {}, "Not everything could be read as it stands"),
    el("ul", {}, runData.notices.map((text) => el("li", {}, text))));
}

const arrow = (from, to, format) => `${format(from)} \u2192 ${format(to)}`;

function tiles() {
  const h = runData.headline;
  const n = h.reward_steps || 3;
  return el("div", {class: "tiles"}, [
    tile("Mean reward", isNumber(h.reward_first) ? arrow(h.reward_first, h.reward_last, (v) => v.toFixed(2)) : "-", "", `first ${n} against last ${n} of ${h.num_steps} steps`),
    tile("Held-out greedy", isNumber(h.greedy_before) ? arrow(h.greedy_before, h.greedy_after, (v) => v.toFixed(2)) : "-", "",
      isNumber(h.greedy_before) ? `share correct, step ${h.greedy_before_step} against ${h.greedy_after_step}` : "no evaluation recorded"),
    tile("Mean abs delta", number(h.mean_abs_delta), "nats", `largest single token ${number(h.max_abs_delta)}`),
    tile("Effective sample size", percent(h.ess_last), "", `lowest step ${percent(h.ess_min)}; before clamp`),
    tile("Staleness, largest", number(h.staleness_max), h.staleness_max === 1 ? "version" : "versions", h.staleness_max === 0 ? "every token on-policy" : "trained at minus sampled at"),
    tile("Sampled tokens", number(h.sampled_tokens_per_s), "tokens/s", "median step"),
    tile("Trained tokens", number(h.trained_tokens_per_s), "tokens/s", `median step ${duration(h.step_seconds)}`),
    tile("Weight push", number(h.push_mb_per_s), "MB/s", "all bytes over all seconds"),
  ]);
}

const mono = (text) => (text ? el("span", {class: "mono"}, text) : null);

// For example "invariant (avx512)"; empty for runs that did not record it.
const numericsOf = (part) => (part.numerics ? `${part.numerics} (${plain(part.instruction_set)})` : null);

function runCard() {
  const run = runData.run;
  const {model = {}, trainer = {}, versions = {}, hardware = {}, task = {}} = run;
  const servers = Array.isArray(run.servers) ? run.servers : [];
  const known = Object.entries(versions).map(([name, value]) => [name, value]);
  return section("card", "Run card", "What it takes to do this run again.",
    el("div", {class: "grid"},
      card("Model and task", null, facts([["path", model.path], ["architecture", model.type], ["weights", model.source || null],
        ["parameters", isNumber(model.num_parameters) ? model.num_parameters.toLocaleString("en-US") : null],
        ["tokenizer", mono(model.tokenizer_hash)], ["training prompts", task.num_train_prompts], ["held-out prompts", task.num_eval_prompts],
        ["seed", run.seed], ["deterministic", run.deterministic === undefined ? null : run.deterministic ? "yes" : "no"]])),
      card("Versions and hardware", null, facts([...known, ["CPU", hardware.cpu], ["cores", hardware.cores],
        ["memory", isNumber(hardware.memory_gib) ? number(hardware.memory_gib) + " GiB" : null],
        ["trainer", trainer.dtype ? `${trainer.dtype}, ${plain(trainer.threads)} threads` : null], ["trainer numerics", numericsOf(trainer)]])),
      card("Rollout servers at the start", null, servers.length ? servers.map((s) => facts([["address", s.address], ["dtype", s.dtype], ["numerics", numericsOf(s)], ["groups in flight at a push", s.in_flight], ["version", s.version], ["weights digest", mono(s.weight_digest)], ["injected faults", s.injected && s.injected.length ? s.injected.join("; ") : null]])) : el("p", {class: "empty"}, "none recorded"))),
    runData.config ? el("div", {class: "card", id: "config"}, el("details", {}, el("summary", {}, "Resolved configuration (config.yaml)"), el("pre", {}, runData.config))) : null);
}

function alertBlock() {
  const alerts = runData.alerts;
  return section("alerts", "Alerts", alerts.length ? "Raised by the trainer, with what usually causes them." : null,
    alerts.length ? alerts.map((alert) => el("div", {class: "card alert"},
      el("div", {class: "card-head"}, el("h3", {}, `${plain(alert.name)} at step ${plain(alert.step)}`),
        el("span", {class: "formula"}, `value ${number(alert.value)}, threshold ${number(alert.threshold)}`)),
      el("p", {class: "note"}, plain(alert.message)), alert.diagnosis ? el("div", {}, plain(alert.diagnosis)) : null))
      : el("p", {class: "empty"}, "No alert was raised."));
}
