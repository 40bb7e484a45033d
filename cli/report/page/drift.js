"use strict";
// Drift between behaviour and proximal log-probs, each number with its formula. All values are from
// before any clamp unless the title says "after clamp".

const driftRows = [
  ["mean_delta", "mean delta", "mean(delta)", "arithmetic"],
  ["k1", "k1", "mean(-delta)", "arithmetic"],
  ["k2", "k2", "mean(delta\u00b2 / 2)", "arithmetic"],
  ["k3", "k3", "mean(w - 1 - delta)", "arithmetic"],
  ["reverse_kl", "reverse KL", "mean(w delta)", "arithmetic"],
  ["chi2", "chi\u00b2", "mean(w\u00b2) - 1", "arithmetic"],
  ["ess_fraction", "effective sample size / N", "(sum w)\u00b2 / (N sum w\u00b2)", "arithmetic"],
  ["mean_w", "mean w", "mean(w); 1 when the support is preserved", "arithmetic"],
  ["mean_w_stderr", "standard error of mean w", "sqrt((mean(w\u00b2) - mean(w)\u00b2) / (N - 1))", "arithmetic"],
  ["mean_abs_delta", "mean abs delta", "mean(|delta|)", "arithmetic"],
  ["max_abs_delta", "max abs delta", "max(|delta|)", "arithmetic"],
  ["mean_exp_abs_delta", "mean exp abs delta", "mean(e^|delta|)", "arithmetic"],
  ["abs_delta_p50", "abs delta, median", "p50(|delta|)", "arithmetic"],
  ["abs_delta_p90", "abs delta, p90", "p90(|delta|)", "arithmetic"],
  ["abs_delta_p99", "abs delta, p99", "p99(|delta|)", "arithmetic"],
  ["abs_delta_p999", "abs delta, p99.9", "p99.9(|delta|)", "arithmetic"],
  ["share_above_1e6", "share above 1e-6", "share of |delta| > 1e-6", "arithmetic"],
  ["pearson_probability", "correlation of probabilities", "Pearson(pi_behaviour, pi_proximal)", "arithmetic"],
  ["mean_abs_probability_difference", "mean probability difference", "mean(|pi_proximal - pi_behaviour|)", "arithmetic"],
  ["max_abs_probability_difference", "max probability difference", "max(|pi_proximal - pi_behaviour|)", "arithmetic"],
  ["sequence_log_ratio_sum_mean", "sequence log-ratio, sum", "mean over completions of sum_t delta", "product"],
  ["sequence_log_ratio_mean_mean", "sequence log-ratio, mean", "mean over completions of mean_t delta", "geometric"],
  ["sequence_log_ratio_max", "sequence log-ratio, largest", "max over completions of |sum_t delta|", "product"],
  ["log_ppl_gap", "log-perplexity gap", "mean over completions of mean_t(-log pi_proximal) - mean_t(-log pi_behaviour)", "geometric"],
  ["calibration_z", "sampler calibration z", "sum(-log pi_behaviour - H) / sqrt(sum Var)", "arithmetic"],
  ["positive_mean_w", "mean w where advantage > 0", "mean(w | A > 0)", "arithmetic"],
  ["negative_mean_w", "mean w where advantage < 0", "mean(w | A < 0)", "arithmetic"],
  ["positive_mean_delta", "mean delta where advantage > 0", "mean(delta | A > 0)", "arithmetic"],
  ["negative_mean_delta", "mean delta where advantage < 0", "mean(delta | A < 0)", "arithmetic"],
];

function meanWeightCard() {
  if (!hasSeries("drift/mean_w")) return null;
  const mean = series("drift/mean_w");
  const error = series("drift/mean_w_stderr") || [];
  const edge = (sign) => mean.map((value, i) => (isNumber(value) && isNumber(error[i]) ? value + sign * 2 * error[i] : null));
  return chartCard("Mean weight, before clamp", "mean(w) with 2 standard errors; a test: 1 lies outside the band when mass is missing",
    [["mean w", "blue"], ["2 standard errors", "sky"], ["1", "grey", true]], () => ({
      type: "line",
      data: {datasets: [
        line("mean w", mean, "blue"),
        {...line("mean w + 2 s.e.", edge(1), "sky"), borderWidth: 1, fill: "+1", backgroundColor: faint("sky", .25)},
        {...line("mean w - 2 s.e.", edge(-1), "sky"), borderWidth: 1},
        line("1", mean.map(() => 1), "grey", {dashed: true}),
      ]},
      options: {scales: {x: stepAxis(), y: axis("w", {})}},
    }));
}

function calibrationCard() {
  if (!hasSeries("drift/calibration_z")) return null;
  const z = series("drift/calibration_z");
  return chartCard("Sampler calibration", "z = sum(-log pi_behaviour - H) / sqrt(sum Var): are the tokens drawn from what the server claims? |z| > 3 is suspicious",
    [["z", "blue"], ["\u00b13", "red", true]], () => ({
      type: "line",
      data: {datasets: [line("z", z, "blue"), line("+3", z.map(() => 3), "red", {dashed: true}), line("-3", z.map(() => -3), "red", {dashed: true})]},
      options: {scales: {x: stepAxis(), y: axis("z", {suggestedMin: -4, suggestedMax: 4})}},
    }));
}

function weightHistogramCards() {
  const sets = runData.weights;
  if (!sets.all) return [];
  const count = sets.all.raw.length;
  const width = 4 / count;
  const labels = [...Array(count).keys()].map((i) => (i === count - 1 ? `\u2265 ${number(i * width, 3)}` : number(i * width, 3)));
  const named = [["all", "all steps"], ["last", `step ${sets.last.step}`]];
  return named.map(([key, text]) => barCard(`Importance weights, ${text}`,
    "Tokens by w = pi_proximal / pi_behaviour, before and after truncation (logarithmic counts; a label is its bin's lower edge)",
    labels, [["before truncation", sets[key].raw, "orange"], ["after truncation", sets[key].truncated, "blue"]], {x: "w", y: "tokens", log: true}));
}

function driftTable() {
  const rows = driftRows.filter(([key]) => hasSeries("drift/" + key)).map(([key, name, formula, kind]) => {
    const values = series("drift/" + key).filter(isNumber);
    return {key, name, formula, kind, first: values[0], last: values[values.length - 1], low: Math.min(...values), high: Math.max(...values)};
  });
  if (!rows.length) return null;
  return el("div", {class: "card", id: "drift-table"}, el("div", {class: "card-head"}, el("h3", {}, "Every drift number")),
    el("p", {class: "note"}, "Over trained tokens, before any clamp. delta = log pi_proximal - log pi_behaviour, w = e^delta. Product, arithmetic, geometric: how tokens of a completion are combined."),
    table([{name: "name", cell: (r) => r.name}, {name: "formula", cell: (r) => el("span", {class: "formula"}, r.formula)}, {name: "combined", cell: (r) => r.kind},
      {name: "first", num: true, cell: (r) => number(r.first)}, {name: "last", num: true, cell: (r) => number(r.last)},
      {name: "lowest", num: true, cell: (r) => number(r.low)}, {name: "highest", num: true, cell: (r) => number(r.high)}], rows));
}

// The size of the drift, with the interval of each step over its completions.
function intervalCards() {
  return [
    bandCard("k3 with its interval", "mean(w - 1 - delta), an estimate of KL(behaviour || proximal) that is never negative; the band is the 95 % interval over completions, before clamp",
      [["drift/k3", "k3", "green"]], {title: "nats", suggestedMin: 0}),
    bandCard("Mean abs delta with its interval", "mean(|delta|); 95 % interval over completions, before clamp", [["drift/mean_abs_delta", "mean |delta|", "blue"]], {title: "nats", suggestedMin: 0}),
    bandCard("Effective sample size", "(sum w)\u00b2 / (N sum w\u00b2), before clamp: 1 when all weights are equal; 95 % interval over completions",
      [["drift/ess_fraction", "ESS / N", "blue"]], {title: "share of N"}),
    meanWeightCard(),
    calibrationCard(),
  ];
}

function driftSection() {
  const cards = [
    ...intervalCards(),
    lineCard("Abs delta", "mean(|delta|), quantiles and max(|delta|) over trained tokens, before clamp (logarithmic)",
      [["drift/max_abs_delta", "max", "red"], ["drift/abs_delta_p999", "p99.9", "orange", {dashed: true}], ["drift/abs_delta_p99", "p99", "orange"],
        ["drift/mean_abs_delta", "mean", "blue"], ["drift/abs_delta_p50", "median", "green", {dashed: true}]], {log: true, title: "nats"}),
    lineCard("KL estimators", "k1 = mean(-delta), k2 = mean(delta\u00b2 / 2), k3 = mean(w - 1 - delta): arithmetic, before clamp",
      [["drift/k1", "k1", "blue"], ["drift/k2", "k2", "orange", {dashed: true}], ["drift/k3", "k3", "green"]], {title: "nats"}),
    lineCard("Chi-squared", "mean(w\u00b2) - 1, arithmetic, before clamp", [["drift/chi2", "chi\u00b2", "blue"]], {}),
    lineCard("Sequence log-ratio", "product: sum_t delta; geometric: mean_t delta; per completion, then averaged",
      [["drift/sequence_log_ratio_sum_mean", "product", "blue"], ["drift/sequence_log_ratio_mean_mean", "geometric", "orange", {dashed: true}],
        ["drift/sequence_log_ratio_max", "largest |product|", "red"]], {title: "nats"}),
    bandCard("By advantage sign", "mean(w | A > 0) against mean(w | A < 0), before clamp: a lasting difference turns a correction into a bias",
      [["drift/positive_mean_w", "advantage > 0", "blue"], ["drift/negative_mean_w", "advantage < 0", "orange", {dashed: true}]], {title: "w"}),
    lineCard("Kept by advantage sign", "share of trained tokens that masks and filters keep; when one side falls, the correction pushes the policy one way",
      [["correction/positive_kept_fraction", "advantage > 0", "blue"], ["correction/negative_kept_fraction", "advantage < 0", "orange", {dashed: true}]], {title: "share", suggestedMin: .95, suggestedMax: 1}),
    ...bucketCards(),
    ...splitPartCards(),
    ...probeCards(),
    lineCard("Mean weight around truncation", "mean(w) before clamp and mean(min(C, w)) after clamp: the difference is what the ceiling removes",
      [["correction/mean_weight_raw", "before clamp", "orange", {dashed: true}], ["correction/mean_weight", "after clamp", "blue"]], {title: "w"}),
    lineCard("Capped", "share of trained tokens whose weight met the ceiling C", [["correction/capped_share", "capped share", "blue"]], {title: "share", suggestedMin: 0, suggestedMax: .02}),
    ...weightHistogramCards(),
  ].filter(Boolean);
  return section("drift", "Drift", "How far the trainer's log-probs are from those the rollout server sampled with, on the same tokens.",
    cards.length ? el("div", {class: "grid"}, cards) : el("p", {class: "empty"}, "No train step recorded yet."), lastSplits(), captureCard(), driftTable());
}
