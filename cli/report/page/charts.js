"use strict";
// Charts with one style, redrawn when the theme changes. The colours are Okabe and Ito's, which
// colour-blind readers can distinguish, and each has a second mark (dashes, position, a label).

const palette = {
  light: {ink: "#1c2330", blue: "#0072b2", orange: "#d98300", green: "#009e73", red: "#d55e00", sky: "#3f9fd6", pink: "#b8578f", grey: "#7a8594", yellow: "#b5a300"},
  dark: {ink: "#e4e9f0", blue: "#4aa8e0", orange: "#f0a830", green: "#2fc196", red: "#f07838", sky: "#8fd0f5", pink: "#dd92bd", grey: "#95a1b1", yellow: "#e8db4a"},
};
const drawn = [];

const isDark = () => document.documentElement.dataset.theme === "dark";
const colour = (name) => palette[isDark() ? "dark" : "light"][name] || name;
const faint = (name, alpha) => colour(name) + Math.round(alpha * 255).toString(16).padStart(2, "0");
const cssVariable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// As Chart.js writes it, but tiny values, which it would give all their zeros, with three digits.
function plainTick(value, index, ticks) {
  if (this.type === "category") return this.getLabelForValue(value);
  return value !== 0 && Math.abs(value) < 1e-4 ? number(value, 3) : Chart.Ticks.formatters.numeric.call(this, value, index, ticks);
}

function axis(title, options) {
  const {min, max, log, ticks, stacked, grid} = options || {};
  const type = log ? "logarithmic" : options && options.type;
  return {
    ...(type ? {type} : {}), min, max, stacked,  // an undefined type would hide the chart's own default
    suggestedMin: options && options.suggestedMin, suggestedMax: options && options.suggestedMax,
    title: {display: Boolean(title), text: title, color: cssVariable("--muted"), font: {size: 11}},
    grid: {color: cssVariable("--line"), drawBorder: false, display: grid !== false},
    ticks: {color: cssVariable("--muted"), font: {size: 11}, maxTicksLimit: log ? 6 : 8, maxRotation: 0, autoSkipPadding: 12,
      ...(ticks || {callback: log ? (value) => (Math.abs(Math.log10(value) % 1) < 1e-9 ? number(value, 1) : "") : plainTick})},
  };
}

// A card with a chart. `build` returns the Chart.js configuration for the current theme; `keys` are
// the legend: [name, colour, dashed].
function chartCard(title, note, keys, build) {
  const canvas = el("canvas", {role: "img", "aria-label": title});
  const legend = el("div", {class: "keys"});
  const node = card(title, note || "", el("div", {class: "plot"}, canvas), legend);
  node.classList.add("chart");
  for (const [name, tint, dashed] of keys) {
    const item = el("span", {class: dashed ? "dashed" : null}, name);
    item.dataset.tint = tint;
    legend.append(item);
  }
  drawn.push({canvas, legend, build, chart: null});
  return node;
}

function drawCharts() {
  for (const item of drawn) {
    if (item.chart) item.chart.destroy();
    for (const key of item.legend.children) key.style.setProperty("--key", colour(key.dataset.tint));
    const config = item.build();
    config.options = {
      responsive: true, maintainAspectRatio: false, animation: false, ...config.options,
      interaction: {mode: "index", intersect: false},
      plugins: {legend: {display: false}, tooltip: {filter: (item) => !item.dataset.edge, callbacks: {label: (item) => `${item.dataset.label}: ${number(item.parsed.y, 4)}`}},
        ...(config.options && config.options.plugins)},
    };
    item.chart = new Chart(item.canvas, config);
  }
}

const series = (key) => runData.series[key];
const hasSeries = (...keys) => keys.some((key) => series(key) && series(key).some(isNumber));

// The points of a series that have values, so that a line connects evaluations several steps apart.
const points = (values, above) => runData.steps.map((step, i) => ({x: step, y: values[i]}))
  .filter((point) => isNumber(point.y) && (above === undefined || point.y > above));

function line(label, values, tint, options) {
  const {dashed, dots, log, fill} = options || {};
  const data = points(values, log ? 0 : undefined);
  return {label, data, borderColor: colour(tint), backgroundColor: fill ? faint(tint, .16) : colour(tint), borderWidth: 2,
    borderDash: dashed ? [6, 4] : [], pointRadius: dots ? 4 : data.length === 1 ? 3 : 0, pointHoverRadius: 4, tension: 0, clip: 8, fill: fill || false};
}

// A line with the interval of each point as a band. points: [{x, y, low, high}]; without
// bounds, the band is interrupted. `edge` marks the datasets of the band's limits.
function band(label, points, tint, options) {
  const known = points.filter((point) => isNumber(point.y));
  const edge = (bound, fill) => ({label: `${label}, ${bound}`, edge: true, data: known.map((point) => ({x: point.x, y: isNumber(point[bound]) ? point[bound] : null})),
    borderWidth: 0, pointRadius: 0, pointHoverRadius: 0, pointHitRadius: 0, backgroundColor: faint(tint, .2), fill, tension: 0, clip: 8});
  const {dashed} = options || {};
  return [{label, data: known, borderColor: colour(tint), backgroundColor: colour(tint), borderWidth: 2, borderDash: dashed ? [6, 4] : [],
    pointRadius: known.length === 1 ? 3 : 0, pointHoverRadius: 4, tension: 0, clip: 8, fill: false}, edge("low", "+1"), edge("high", false)];
}

// The points of a series whose bounds are the series KEY_low and KEY_high.
function pointsWithBounds(key) {
  const at = (name, i) => (series(name) ? series(name)[i] : null);
  return runData.steps.map((step, i) => ({x: step, y: at(key, i), low: at(key + "_low", i), high: at(key + "_high", i)}));
}

function stepAxis() {
  const steps = runData.steps;
  return axis("train step", {type: "linear", min: Math.min(...steps), max: Math.max(...steps), grid: false, ticks: {precision: 0}});
}

// lines: [key, label, colour, {dashed, dots}]. Lines without data are omitted; null if none has data.
function lineCard(title, note, lines, yOptions) {
  const present = lines.filter(([key]) => hasSeries(key));
  if (!present.length) return null;
  const log = yOptions && yOptions.log;
  return chartCard(title, note, present.map(([, label, tint, options]) => [label, tint, options && options.dashed]), () => ({
    type: "line",
    data: {datasets: present.map(([key, label, tint, options]) => line(label, series(key), tint, {...options, log}))},
    options: {scales: {x: stepAxis(), y: axis(yOptions && yOptions.title, yOptions)}},
  }));
}

// The same with the interval of each line as a band. yOptions.level: [label, value] is a constant for
// comparison.
function bandCard(title, note, lines, yOptions) {
  const present = lines.filter(([key]) => hasSeries(key));
  if (!present.length) return null;
  const {level} = yOptions || {};
  const keys = [...present.map(([, label, tint, options]) => [label, tint, options && options.dashed]), ...(level ? [[level[0], "grey", true]] : [])];
  return chartCard(title, note, keys, () => ({
    type: "line",
    data: {datasets: [...present.flatMap(([key, label, tint, options]) => band(label, pointsWithBounds(key), tint, options)),
      ...(level ? [line(level[0], runData.steps.map(() => level[1]), "grey", {dashed: true})] : [])]},
    options: {scales: {x: stepAxis(), y: axis(yOptions && yOptions.title, yOptions)}},
  }));
}

// sets: [label, values, colour]
function barCard(title, note, labels, sets, options) {
  const {x, y, stacked, log} = options || {};
  return chartCard(title, note, sets.length > 1 ? sets.map(([label, , tint]) => [label, tint]) : [], () => ({
    type: "bar",
    data: {labels, datasets: sets.map(([label, values, tint]) => ({label, data: values, backgroundColor: colour(tint), borderRadius: stacked ? 0 : 2,
      categoryPercentage: .86, barPercentage: stacked ? .98 : .94}))},
    options: {scales: {x: axis(x, {grid: false, stacked}), y: axis(y, {stacked, log})}},
  }));
}
