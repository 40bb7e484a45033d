"use strict";
// Learning, optimisation, lengths, staleness and time.

function learningSection() {
  const allParts = Object.keys(runData.series).filter((key) => key.startsWith("reward/part/"));
  const told = allParts.filter((key) => key.startsWith("reward/part/environment/"));
  const parts = allParts.filter((key) => !told.includes(key));
  const tints = ["green", "orange", "pink", "sky", "yellow", "red"];
  const cards = [
    lineCard("Reward", "mean over all completions of a step; greedy: mean reward of the held-out prompts at temperature 0",
      [["reward/mean", "sampled, mean", "blue"], ["reward/std", "sampled, std", "grey", {dashed: true}], ["eval/greedy", "held-out greedy", "orange", {dots: true}], ["reward/gold", "held-out gold", "green"], ["eval/gold", "gold of held-out prompts", "pink", {dots: true}]], {title: "reward", suggestedMin: 0, suggestedMax: 1}),
    lineCard("Pass@k and held-out share", "pass@k: share of groups with a completion of at least the pass threshold",
      [["reward/pass_at_k", "training pass@k", "blue"], ["eval/pass_at_k", "held-out pass@k", "green", {dots: true, dashed: true}],
        ["eval/greedy_share_correct", "held-out greedy", "orange", {dots: true}]], {title: "share", min: 0, max: 1}),
    lineCard("Groups", "zero variance: all rewards of a group equal, nothing to learn from it",
      [["reward/zero_variance_share", "zero-variance share", "orange"], ["reward/group_std_mean", "mean std in a group", "blue"], ["advantage/var", "advantage variance", "green", {dashed: true}]], {suggestedMin: 0}),
    parts.length > 1 ? lineCard("Reward parts", "each component before its weight", parts.map((key, i) => [key, key.slice(12), tints[i % tints.length]]), {}) : null,
    lineCard("Lengths", "tokens of a completion, stop token included",
      [["length/max", "max", "red", {dashed: true}], ["length/mean", "mean", "blue"], ["length/min", "min", "green", {dashed: true}]], {title: "tokens", suggestedMin: 0}),
    hasSeries("turns/mean") ? lineCard("Turns", "turns of a completion; failed: completions that their environment could not play to the end",
      [["turns/max", "max", "red", {dashed: true}], ["turns/mean", "mean", "blue"], ["turns/failed", "failed completions", "orange"]], {suggestedMin: 0}) : null,
    told.length ? lineCard("What the environment tells", "its own numbers, mean over completions", told.map((key, i) => [key, key.slice(24), tints[i % tints.length]]), {suggestedMin: 0}) : null,
    hasSeries("turns/given_share") ? lineCard("Given tokens", "share of a completion's tokens that were given between its turns, and not sampled",
      [["turns/given_share", "given share", "blue"]], {title: "share", min: 0, max: 1}) : null,
    lineCard("Truncated", "share of completions that met the token limit before they ended",
      [["length/truncated_share", "truncated share", "orange"]], {title: "share", suggestedMin: 0}),
  ].filter(Boolean);
  return section("learning", "Learning", null, cards.length ? el("div", {class: "grid"}, cards) : el("p", {class: "empty"}, "No train step recorded yet."));
}

function optimisationSection() {
  const cards = [
    lineCard("Entropy", "mean entropy of the target policy on trained tokens", [["loss/entropy", "entropy", "blue"]], {title: "nats", suggestedMin: 0}),
    lineCard("Ratio", "r = pi_target / pi_proximal; exactly 1 on the first minibatch", [["loss/ratio_mean", "mean", "blue"], ["loss/ratio_max", "max", "orange"]], {}),
    lineCard("Clip", "share of trained tokens whose ratio was clipped, by side",
      [["loss/clip_low_share", "low side", "blue"], ["loss/clip_high_share", "high side", "orange"], ["loss/dual_clip_share", "dual clip", "green", {dashed: true}]], {title: "share", suggestedMin: 0, suggestedMax: .02}),
    lineCard("Gradient norm", "global, before clipping", [["optimizer/grad_norm", "gradient norm", "blue"]], {suggestedMin: 0}),
    lineCard("Learning rate", null, [["optimizer/learning_rate", "learning rate", "blue"]], {suggestedMin: 0, ticks: {callback: (v) => number(v, 2)}}),
    lineCard("Loss", "its level says little: it is near 0 by construction when advantages are centred",
      [["loss/policy", "policy", "blue"], ["loss/kl", "KL to reference", "orange"], ["loss/total", "total", "green", {dashed: true}]], {}),
    lineCard("KL to the reference policy", "target against frozen reference, same estimators",
      [["kl_reference/k1", "k1", "blue"], ["kl_reference/k2", "k2", "orange", {dashed: true}], ["kl_reference/k3", "k3", "green"]], {title: "nats"}),
    hasSeries("loss/kl_proximal") && series("loss/kl_proximal").some((kl) => kl > 0) ? lineCard("KL to the proximal policy", "of a token, over the updates of a step; target_kl ends them",
      [["loss/kl_proximal", "KL(proximal || target)", "blue"]], {title: "nats", suggestedMin: 0}) : null,
    lineCard("Critic", "explained variance of the values a step starts from: 1 is right, 0 knows no more than the mean, below 0 does harm",
      [["critic/explained_variance", "explained variance", "blue"], ["critic/clip_share", "clipped share", "orange", {dashed: true}]], {suggestedMin: 0, suggestedMax: 1}),
    lineCard("Values", "mean over trained tokens, and of what they are trained on",
      [["critic/value_mean", "value", "blue"], ["critic/target_mean", "target", "orange"], ["critic/loss", "value loss", "green", {dashed: true}]], {}),
    lineCard("What the push carried", "share of elements that changed at the server's dtype; arrived: <sent, update> / <update, update>, 1 when the cast keeps the update on average",
      [["push/changed_share", "changed share", "blue"], ["push/arrived_share", "arrived share", "orange", {dashed: true}]], {suggestedMin: 0}),
  ].filter(Boolean);
  return cards.length ? section("optimisation", "Optimisation", null, el("div", {class: "grid"}, cards)) : null;
}

const timeParts = [
  ["rollout", "1-3 rollout", "blue"], ["reward", "3 reward", "pink"], ["pack", "4 pack", "yellow"], ["proximal", "5 proximal", "green"],
  ["update", "6-8 update", "orange"], ["push", "9 push", "red"], ["checkpoint", "checkpoint", "grey"], ["eval", "evaluation", "sky"],
];

function timeSection() {
  const steps = runData.steps.filter((step) => step > 0);
  const at = runData.steps.map((step, i) => i).filter((i) => runData.steps[i] > 0);
  const present = timeParts.filter(([key]) => hasSeries("time/" + key));
  const staleness = Object.keys(runData.staleness).map(Number).sort((a, b) => a - b);
  const cards = [
    present.length ? barCard("Seconds per stage", "numbers are the stages of docs/dev/tour.md", steps,
      present.map(([key, label, tint]) => [label, at.map((i) => series("time/" + key)[i]), tint]), {stacked: true, x: "train step", y: "seconds"}) : null,
    present.length ? card("Share of the whole run", null, timeTable(present)) : null,
    lineCard("Throughput", null, [["throughput/sampled_tokens_per_s", "sampled", "blue"], ["throughput/trained_tokens_per_s", "trained", "orange"]], {title: "tokens/s", suggestedMin: 0}),
    staleness.length ? barCard("Staleness", "trained tokens by trained-at minus sampled-at version, all steps", staleness, [["tokens", staleness.map((s) => runData.staleness[String(s)]), "blue"]], {x: "staleness", y: "tokens"}) : null,
  ].filter(Boolean);
  return cards.length ? section("time", "Time and staleness", null, el("div", {class: "grid"}, cards)) : null;
}

function timeTable(present) {
  const rows = present.map(([key, label]) => ({label, seconds: series("time/" + key).filter(isNumber).reduce((a, b) => a + b, 0), count: series("time/" + key).filter(isNumber).length}));
  const all = rows.reduce((sum, row) => sum + row.seconds, 0);
  return table([{name: "stage", cell: (r) => r.label}, {name: "seconds", num: true, cell: (r) => number(r.seconds)},
    {name: "per step", num: true, cell: (r) => number(r.seconds / r.count)}, {name: "share", num: true, cell: (r) => (all > 0 ? percent(r.seconds / all) : "-")}], rows);
}
