"use strict";
// The page of a reward model: accuracy and loss while it was trained, and how its confidence agrees
// with its accuracy on held-out data. The data is reward_model.json with the lines of metrics.jsonl.

const model = pageData;
const isProcess = model.kind === "process";
const judged = isProcess ? "steps" : "pairs";
const accuracyKey = isProcess ? "accuracies" : "rewards/accuracies";

function curveCard(title, note, key, yOptions) {
  const pointsOf = (name) => model.curves.map((line) => ({x: line.step, y: line[name]})).filter((point) => isNumber(point.y));
  const sets = [["training batch", pointsOf(key), "blue"], ["held out", pointsOf("held_out/" + key), "orange"]].filter(([, data]) => data.length);
  return chartCard(title, note, sets.map(([label, , tint]) => [label, tint]), () => ({
    type: "line",
    data: {datasets: sets.map(([label, data, tint]) => ({label, data, borderColor: colour(tint), backgroundColor: colour(tint), borderWidth: 2, pointRadius: data.length < 20 ? 3 : 0, tension: 0}))},
    options: {scales: {x: axis("update", {type: "linear", grid: false, ticks: {precision: 0}}), y: axis(yOptions.title, yOptions)}},
  }));
}

function reliabilityCard() {
  const bins = model.held_out.bins.filter((bin) => bin.num > 0);
  const dots = bins.map((bin) => ({x: bin.confidence, y: bin.accuracy}));
  return chartCard("Reliability", "A calibrated model lies on the dashed line: of what it is 80 % sure of, 80 % is right. Below it, the model is too sure.",
    [["this model", "blue"], ["calibrated", "grey", true]], () => ({
      type: "line",
      data: {datasets: [
        {label: "accuracy", data: dots, borderColor: colour("blue"), backgroundColor: colour("blue"), borderWidth: 2, pointRadius: 4, tension: 0},
        {label: "calibrated", data: [{x: .5, y: .5}, {x: 1, y: 1}], borderColor: colour("grey"), borderDash: [6, 4], borderWidth: 2, pointRadius: 0}]},
      options: {scales: {x: axis("confidence", {type: "linear", min: .5, max: 1}), y: axis("accuracy", {min: 0, max: 1})}},
    }));
}

function numberTiles() {
  const {held_out: held, length_bias: bias} = model;
  return el("div", {class: "tiles"}, tile("Accuracy", percent(held.accuracy), "", `of ${number(held.num)} held-out ${judged}`),
    tile("Calibration error", number(held.expected_calibration_error), "", "expected, over ten bins"),
    tile("Brier score", number(held.brier_score), "", "0.25 is that of a coin"),
    tile("Loss", number(model.held_out_loss), "nats", "held out"),
    bias ? tile("Length bias", number(bias.slope), "per token", `correlation ${number(bias.correlation)}`) : null);
}

function binTable() {
  return el("div", {class: "card"}, table([{name: "confidence", cell: (bin) => `${number(bin.low)} to ${number(bin.high)}`}, {name: judged, num: true, cell: (bin) => number(bin.num)},
    {name: "mean confidence", num: true, cell: (bin) => (bin.num ? number(bin.confidence) : "-")}, {name: "accuracy", num: true, cell: (bin) => (bin.num ? percent(bin.accuracy) : "-")}], model.held_out.bins));
}

function headTable() {
  if (!model.accuracy_of_heads || model.accuracy_of_heads.length < 2) return null;
  return section("heads", "Heads", "Each head has a bootstrap sample of the pairs of its own.", el("div", {class: "card"}, table([{name: "head", num: true, cell: (head) => String(head.k)},
    {name: "accuracy", num: true, cell: (head) => percent(head.accuracy)}], model.accuracy_of_heads.map((accuracy, k) => ({k, accuracy})))));
}

function buildPage() {
  const page = document.getElementById("page");
  const sections = [
    section("numbers", "On held-out data", null, numberTiles()),
    section("training", "Training", null, el("div", {class: "grid"}, curveCard("Accuracy", "", accuracyKey, {title: "share", min: 0, max: 1}), curveCard("Loss", "", "loss", {title: "nats", suggestedMin: 0}))),
    section("calibration", "Calibration", null, reliabilityCard(), binTable()), headTable()].filter(Boolean);
  page.replaceChildren(el("h1", {}, isProcess ? "Process reward model" : "Reward model"), ...sections,
    el("footer", {}, `Written by tandem train-reward-model: ${number(model.num_updates)} updates on ${number(model.num_trained)} rows, ${model.num_heads} ${model.num_heads === 1 ? "head" : "heads"}. What the numbers are: docs/preferences.md.`));
  for (const node of sections) document.getElementById("nav").append(el("a", {href: "#" + node.id}, node.querySelector("h2").textContent));
}

buildPage();
startTheme();
