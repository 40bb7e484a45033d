"use strict";
// Over-optimisation: the reward that is trained on and the held-out one, by the distance from the
// reference policy, with the laws of Gao et al. 2023 (arXiv 2210.10760).

const lawNames = {best_of_n: "d (\u03b1 \u2212 \u03b2 d)", reinforcement: "d (\u03b1 \u2212 \u03b2 log d)"};
const sides = [["proxy", "proxy (trained on)", "blue"], ["gold", "gold (held out)", "orange"]];

const betterLaw = (fit) => (fit.error ? null : fit.laws[fit.better]);

// Where the fitted gold reward is largest, if that is within what the run has reached.
function goldPeak(data) {
  const law = betterLaw(data.gold);
  if (!law || !isNumber(law.peak_distance)) return null;
  const farthest = Math.max(...data.points.map((point) => point.d));
  if (law.peak_distance > farthest) return null;
  return law.curve.reduce((best, point) => (Math.abs(point.d - law.peak_distance) < Math.abs(best.d - law.peak_distance) ? point : best));
}

function overoptimisationCard(data) {
  const peak = goldPeak(data);
  const keys = sides.flatMap(([side, label, tint]) => [[label, tint], ...(data[side].error ? [] : [[`fit of ${side}`, tint, true]])]);
  return chartCard("Reward by distance from the reference", "a point is a train step; d = sqrt(KL of a completion), k3 of a token times the mean length",
    peak ? [...keys, ["peak of the gold fit", "red"]] : keys, () => ({
      type: "scatter",
      data: {datasets: [
        ...sides.map(([side, label, tint]) => ({label, data: data.points.map((point) => ({x: point.d, y: point[side]})), backgroundColor: colour(tint), borderColor: colour(tint), pointRadius: 3, clip: 8})),
        ...sides.filter(([side]) => !data[side].error).map(([side, , tint]) => ({label: `fit of ${side}`, type: "line", data: betterLaw(data[side]).curve.map((point) => ({x: point.d, y: point.reward})),
          borderColor: colour(tint), borderWidth: 2, borderDash: [6, 4], pointRadius: 0, pointHitRadius: 0, tension: 0})),
        ...(peak ? [{label: "peak of the gold fit", data: [{x: peak.d, y: peak.reward}], backgroundColor: colour("red"), borderColor: colour("red"), pointRadius: 7, pointStyle: "triangle"}] : [])]},
      options: {scales: {x: axis("d, square root of nats", {type: "linear", min: 0}), y: axis("reward", {})}},
    }));
}

function fitTable(data) {
  const rows = sides.flatMap(([side]) => (data[side].error ? [{side, law: data[side].error}] : Object.entries(data[side].laws).map(([name, law]) => ({side, name, better: name === data[side].better, ...law}))));
  const withError = (row, key) => (row.name ? `${number(row[key])} \u00b1 ${number(row[key + "_error"])}` : "");
  return el("div", {class: "card"}, table([
    {name: "reward", cell: (row) => row.side}, {name: "law", cell: (row) => (row.name ? lawNames[row.name] + (row.better ? " (fits better)" : "") : row.law)},
    {name: "\u03b1", num: true, cell: (row) => withError(row, "alpha")}, {name: "\u03b2", num: true, cell: (row) => withError(row, "beta")},
    {name: "squared residuals", num: true, cell: (row) => (row.name ? number(row.residual_squares) : "")},
    {name: "peak at d", num: true, cell: (row) => (row.name ? (isNumber(row.peak_distance) ? number(row.peak_distance) : "none") : "")}], rows));
}

function overoptimisationSection() {
  const data = runData.overoptimisation;
  if (!data) return null;
  return section("overoptimisation", "Over-optimisation", "A policy that is trained on a proxy raises the gold reward at first and may lower it later. Rewards are counted from those of the first step, whose own noise is in no error of the fits.",
    el("div", {class: "grid"}, overoptimisationCard(data)), fitTable(data));
}
