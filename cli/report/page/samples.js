"use strict";
// Samples: completions coloured token by token by delta, and the worst tokens in context.

function tokenNode(c, t) {
  const text = plainToken(c.tokens[t]);
  const both = isNumber(c.behaviour[t]) && isNumber(c.proximal[t]);
  const delta = both ? c.proximal[t] - c.behaviour[t] : null;
  let before = t - 1;
  while (before >= 0 && !isNumber(c.versions[before])) --before;  // given tokens have none
  const changes = before >= 0 && isNumber(c.versions[t]) && c.versions[t] !== c.versions[before];
  const node = el("span", {class: "tok" + (c.given && c.given[t] ? " given" : "") + (/^<\|.*\|>$/.test(text) ? " special" : "") + (changes ? " next" : ""), tabindex: "0"}, visible(text) || "\u2205");
  node.dataset.delta = delta === null ? "" : delta;
  const lines = [`token ${t}: ${JSON.stringify(text)}`, `behaviour log-prob ${number(c.behaviour[t], 6)}`, `proximal log-prob  ${number(c.proximal[t], 6)}`,
    `delta ${number(delta, 4)}   w ${delta === null ? "-" : number(Math.exp(delta), 4)}`];
  if (isNumber(c.entropies[t])) lines.push(`entropy ${number(c.entropies[t], 4)} nats`);
  lines.push(c.given && c.given[t] ? "given to the model between two turns, not sampled" : `weight version ${plain(c.versions[t])}`);
  node.tipText = lines.join("\n");
  return node;
}

function completionNode(c) {
  const hidden = c.num_tokens - c.tokens.length;
  const why = [c.finish_reason ? plain(c.finish_reason) : null, c.masked ? `not trained${c.drop_reason ? ": " + plain(c.drop_reason) : ""}` : null].filter(Boolean).join(", ");
  return el("div", {class: "completion" + (c.masked ? " masked" : "")},
    el("div", {class: "facts"}, el("div", {}, "reward ", el("b", {}, number(c.reward))), el("div", {}, "advantage ", el("b", {}, number(c.advantage))),
      el("div", {}, `${c.num_drawn} tokens${c.num_drawn < c.num_tokens ? ` and ${c.num_tokens - c.num_drawn} given` : ""}${why ? ", " + why : ""}`)),
    el("div", {class: "tokens"}, c.tokens.map((_, t) => tokenNode(c, t)), hidden > 0 ? el("span", {class: "empty"}, ` \u2026 ${hidden} more tokens`) : null));
}

function groupNode(g) {
  return el("div", {class: "card group"}, el("div", {class: "card-head"}, el("h3", {}, `Group ${plain(g.group_id)}`),
    el("span", {class: "formula"}, `answer ${plain(g.answer)}${g.zero_variance ? ", zero variance" : ""}${g.drop_reason ? ", not trained" : ""}${g.server ? ", " + plain(g.server) : ""}`)),
    el("div", {class: "prompt"}, plainToken(g.prompt)), g.completions.map(completionNode));
}

function sampleSection() {
  const steps = runData.samples.steps;
  if (!steps.length) return section("samples", "Samples", null, el("p", {class: "empty"}, "No rollouts recorded."));
  const view = el("div", {});
  const tabs = steps.map((entry) => el("button", {type: "button", "aria-pressed": "false"}, `step ${entry.step}`));
  const show = (which) => {
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(i === which)));
    const {groups, num_groups} = steps[which];
    view.replaceChildren(el("p", {class: "note empty"}, `${groups.length} of ${num_groups} groups, those with differing rewards first`), ...groups.map(groupNode));
    paintTokens();
  };
  tabs.forEach((tab, i) => tab.addEventListener("click", () => show(i)));
  showsTips(view);
  show(0);
  return section("samples", "Samples", "Each token is coloured by delta = log pi_proximal - log pi_behaviour. Point at a token, or tap it, for its numbers. A bar to the left of a token: its weight version differs from the one before. Slanted tokens were given to the model between two turns.",
    el("div", {class: "tabs"}, tabs), el("div", {class: "scale"}, "trainer finds it less likely (\u2264 -0.5)", el("i", {"aria-hidden": "true"}), "more likely (\u2265 0.5)"), view);
}

// Pointing at a token, or tapping it, shows its numbers.
function showsTips(view) {
  for (const kind of ["mouseover", "focusin"]) view.addEventListener(kind, (event) => (event.target.tipText ? showTip(event.target) : hideTip()));
  for (const kind of ["mouseleave", "focusout"]) view.addEventListener(kind, hideTip);
}

const worstId = (row) => `worst-${row.completion}-${row.position}`;

// The completion of a worst token, closed until a link of the table opens it.
function worstCompletionNode(group, which, rows) {
  const node = completionNode(group.completion);
  const tokens = node.querySelectorAll(".tok");
  for (const row of rows.filter((row) => row.completion === which)) {
    tokens[row.position].id = worstId(row);
    tokens[row.position].classList.add("worst");
  }
  return el("details", {}, el("summary", {}, `Step ${plain(group.step)}, group ${plain(group.group_id)}, completion ${plain(group.completion.index)}`),
    el("div", {class: "prompt"}, plainToken(group.prompt)), node);
}

// Opens what holds the token that the address names, and goes there.
function goToToken() {
  const token = document.getElementById(location.hash.slice(1));
  if (!token || !token.classList.contains("worst")) return;
  token.closest("details").open = true;
  token.focus({preventScroll: true});
  token.scrollIntoView({block: "center"});
}

function worstSection() {
  const worst = runData.samples.worst;
  if (!worst.length) return null;
  const completions = runData.samples.worst_completions || [];
  const holders = el("div", {class: "card group"}, el("h3", {}, "Their completions"), completions.map((group, which) => worstCompletionNode(group, which, worst)));
  showsTips(holders);
  window.addEventListener("hashchange", goToToken);
  const [from, to] = runData.samples.worst_steps;
  return section("worst", "Worst tokens", `The trained tokens with the largest |delta|, steps ${from} to ${to}, in context. Each leads to its completion.`, el("div", {class: "card"}, table([
    {name: "delta", num: true, cell: (r) => number(r.delta)}, {name: "token in context", cell: (r) => el("a", {href: "#" + worstId(r), class: "to-token", title: "Show its completion"}, contextNode(r.before.map(visible).join(""), r.token, r.after.map(visible).join(""), r.delta))},
    {name: "log behaviour", num: true, cell: (r) => number(r.behaviour)}, {name: "log proximal", num: true, cell: (r) => number(r.proximal)},
    {name: "step", num: true, cell: (r) => plain(r.step)}, {name: "group", num: true, cell: (r) => plain(r.group_id)}, {name: "completion", num: true, cell: (r) => plain(r.index)},
    {name: "position", num: true, cell: (r) => plain(r.position)}, {name: "version", num: true, cell: (r) => plain(r.version)}], worst, true)), holders);
}
