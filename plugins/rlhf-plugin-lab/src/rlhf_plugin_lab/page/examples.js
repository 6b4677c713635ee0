// Rows that a step trained on: the worst first, the answers of a pair side by side, steps with scores and labels.

const WORST = { loss: -1, nll: -1, margin: 1 };
const NO_ROW_TOKENS = "No tokens of this row are recorded. Those of the rows that --log.samples keeps are, with --observers.use token_files.";
const WROTE = { prompt: "read", policy: "learned", environment: "read" };
const examples = { order: "loss", words: "" };

function numberIn(row, name) {
  const found = row.rewards.find(([each]) => each === name);
  return found ? found[1] : null;
}

// The loss of a row, in nats; of rows without another one the mean over its learned tokens.
function lossOf(row) {
  return numberIn(row, "loss") ?? numberIn(row, "nll");
}

function worstFirst(name, of) {
  return (a, b) => WORST[name] * ((of(a) ?? WORST[name] * Infinity) - (of(b) ?? WORST[name] * Infinity)) || a.at - b.at;
}

const EXAMPLE_SORTS = {
  loss: ["loss, highest", worstFirst("loss", lossOf)],
  margin: ["margin, lowest", worstFirst("margin", (row) => numberIn(row, "margin"))],
  recorded: ["as recorded", (a, b) => a.at - b.at],
  longest: ["length, longest", (a, b) => b.length - a.length || a.at - b.at],
};

// Units of a step: of a pair its first row stands for both, as the numbers of a pair are in both.
function unitsOf(step, rows) {
  const seen = new Set();
  const units = step.kind === "pair" ? rows.filter((row) => !seen.has(row.group) && seen.add(row.group)) : rows;
  return [...units].sort((EXAMPLE_SORTS[examples.order] ?? EXAMPLE_SORTS.loss)[1]);
}

function unitHash(run, step, row) {
  return step.kind === "pair" ? hashOf("group", run, step.set, step.step, row.group) : hashOf("rollout", run, step.set, step.step, row.uid);
}

async function examplesView(run, step) {
  const rows = await rowsOf(step);
  const list = el("row-list", { class: "rows" });
  const count = el("span", { class: "dim" });
  const hasMargins = rows.some((row) => numberIn(row, "margin") !== null);
  const draw = () => {
    const words = examples.words.toLowerCase();
    const units = unitsOf(step, rows).filter((row) => !words || row.preview.toLowerCase().includes(words) || row.asked.toLowerCase().includes(words) || row.uid.includes(words));
    count.textContent = plural(units.length, step.kind === "pair" ? "pair" : "row");
    list.fill(units, (row) => exampleRow(step, row), (row) => go(unitHash(run, step, row)));
  };
  const words = el("input", { type: "search", placeholder: "filter: words, uid", value: examples.words, "aria-label": "filter",
    oninput: later(() => { examples.words = words.value; draw(); }) });
  const sorts = Object.entries(EXAMPLE_SORTS).filter(([name]) => name !== "margin" || hasMargins).map(([name, [label]]) => [name, label]);
  const view = el("section", { class: "fill" }, stepBar(run, step.set, step), replayPanel(run, step.set, step.step), exampleSummary(step, rows), await heldOutRows(run, step),
    el("div", { class: "bar" }, select("sort", sorts, examples.order, (value) => { examples.order = value; draw(); }), words, count), list);
  draw();
  return view;
}

function exampleSummary(step, rows) {
  const units = unitsOf(step, rows);
  const losses = units.map(lossOf).filter((value) => value !== null);
  const names = [...new Set(units.flatMap((row) => row.rewards.map(([name]) => name)))];
  const means = names.map((name) => {
    const known = units.map((row) => numberIn(row, name)).filter((value) => value !== null);
    return [name === "right" ? "accuracy" : `mean ${name}`, known.reduce((a, b) => a + b, 0) / known.length];
  });
  return el("div", { class: "facts" }, el("div", {}, el("h3", {}, "loss"), losses.length ? histogram(losses, "losses", "row") : "none recorded"),
    el("dl", {}, means.map(([name, value]) => [el("dt", {}, name), el("dd", {}, number(value))]),
      el("dt", {}, "of"), el("dd", {}, `${plural(units.length, step.kind === "pair" ? "recorded pair" : "recorded row")} ${step.set === TRAINING ? "of the step" : "that are held out"}`)));
}

function rightTag(row) {
  const right = numberIn(row, "right");
  if (right === null) return null;
  return el("span", { class: `tag ${right === 1 ? "" : right === 0 ? "bad" : "warn"}` }, right === 1 ? "right" : right === 0 ? "wrong" : `${number(100 * right, 3)} % right`);
}

function exampleRow(step, row) {
  const margin = numberIn(row, "margin");
  return [el("code", {}, step.kind === "pair" ? row.group : row.uid), el("b", { class: "number" }, number(lossOf(row), 3)),
    margin === null ? null : el("span", { class: "dim less" }, `margin ${number(margin, 3)}`), rightTag(row),
    row.chosen !== null && step.kind !== "pair" ? el("span", { class: "tag" }, row.chosen ? "good" : "bad") : null,
    el("span", { class: "preview" }, oneLine(step.kind === "pair" ? row.asked || row.preview : row.preview || row.asked))];
}

async function pairView(run, step, name) {
  const all = await rowsOf(step);
  const rows = all.filter((row) => row.group === name);
  if (!rows.length) return nothing(`Step ${step.step} has no row ${name} in this page.`);
  const units = unitsOf(step, all).map((row) => row.group).filter((each, at, names) => names.indexOf(each) === at);
  const at = units.indexOf(name);
  const to = (place) => units[place] !== undefined && go(hashOf("group", run, step.set, step.step, units[place]));
  keys.left = () => to(at - 1);
  keys.right = () => to(at + 1);
  keys.up = hashOf("step", run, step.set, step.step);
  const [texts, data] = await Promise.all([Promise.all(rows.map(textOf)), Promise.all(rows.map(tokensOf))]);
  const prompt = texts[0].turns.filter(([writer]) => writer === "prompt").map(([, , text]) => text).join("");
  const margin = numberIn(rows[0], "margin");
  return el("section", {}, crumbs(run, step.set, step, el("strong", {}, `pair ${name}`)),
    el("div", { class: "bar" }, button("‹", keys.left, { "aria-label": "pair before", disabled: at === 0 }), el("span", { class: "dim" }, `pair ${at + 1} of ${units.length}`),
      button("›", keys.right, { "aria-label": "next pair", disabled: at === units.length - 1 }),
      el("span", {}, "loss ", el("b", {}, number(lossOf(rows[0])))), margin === null ? null : el("span", {}, "margin ", el("b", {}, number(margin))), rightTag(rows[0])),
    el("details", { class: "card wide", open: prompt.length < 3000 }, el("summary", {}, "prompt"), textBox(prompt)),
    imagesBox(texts[0].images ?? []),
    el("div", { class: "columns" }, rows.map((row, place) => answerCard(run, step, row, texts[place], data[place]))), replayPanel(run, step.set, step.step), await sameRow(run, step, rows[0]));
}

function answerCard(run, step, row, text, data) {
  const to = hashOf("rollout", run, step.set, step.step, row.uid);
  const answer = text.turns.filter(([writer]) => writer !== "prompt").map(([, , each]) => each).join("");
  return el("article", { class: "card rollout" },
    el("header", {}, link(to, el("code", {}, row.uid)), row.chosen === null ? null : el("span", { class: "tag" }, row.chosen ? "chosen" : "rejected")),
    el("div", { class: "score" }, "score ", el("b", {}, number(row.reward))), text.missing ? el("p", { class: "dim" }, text.missing) : textBox(answer, { lines: true }),
    data ? tokensBox(data, null, (token) => history.replaceState(null, "", hashOf("rollout", run, step.set, step.step, row.uid, `t${token}`)), null) : noTokens(step));
}

async function rowView(run, step, uid, place) {
  const all = await rowsOf(step);
  const row = all.find((each) => each.uid === uid);
  if (!row) return nothing(`Step ${step.step} has no row ${uid} in this page.`);
  const [text, data] = [await textOf(row), await tokensOf(row)];
  const isPair = step.kind === "pair";
  const near = isPair ? all.filter((each) => each.group === row.group) : unitsOf(step, all);
  const at = near.indexOf(row);
  const to = (other) => near[other] && go(hashOf("rollout", run, step.set, step.step, near[other].uid));
  keys.left = () => to(at - 1);
  keys.right = () => to(at + 1);
  keys.up = isPair ? hashOf("group", run, step.set, step.step, row.group) : hashOf("step", run, step.set, step.step);
  const chosen = place && /^t\d+$/.test(place) ? Math.min(Number(place.slice(1)), (data?.text.length ?? 1) - 1) : null;
  const pairs = [["score", number(row.reward)], ...row.rewards.map(([name, value]) => [name, number(value)])];
  if (row.chosen !== null) pairs.push(["label", isPair ? (row.chosen ? "chosen" : "rejected") : row.chosen ? "good" : "bad"]);
  if (row.truncated) pairs.push(["truncated", "yes"]);
  return el("section", {},
    crumbs(run, step.set, step, isPair ? [link(keys.up, `pair ${row.group}`), " › "] : null, el("strong", {}, uid)),
    el("div", { class: "bar" }, button("‹", keys.left, { "aria-label": "row before", disabled: at === 0 }), el("span", { class: "dim" }, `row ${at + 1} of ${near.length}${isPair ? " of its pair" : ""}`),
      button("›", keys.right, { "aria-label": "next row", disabled: at === near.length - 1 }), rightTag(row)),
    el("div", { class: "facts" }, el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, nodesOf(value))]))),
    data ? el("div", { class: "card wide" }, el("h2", {}, plural(data.text.length, "token"), el("small", { class: "dim" }, `, ${data.columns.action?.filter((value) => value === 1).length ?? "?"} of them ${step.kind === "steps" ? "ends of steps" : "learned"}`)),
      tokensBox(data, chosen, (token) => history.replaceState(null, "", hashOf("rollout", run, step.set, step.step, uid, `t${token}`)), null)) : noTokens(step),
    imagesBox(text.images ?? []), labeledSteps(text) ?? learnedTurns(text), replayPanel(run, step.set, step.step), await sameRow(run, step, row));
}

// The texts of a row, with what is learned of them marked.
function learnedTurns(text) {
  if (text.missing) return el("p", { class: "dim" }, text.missing);
  return el("div", { class: "turns" }, text.turns.map(([writer, role, each]) => el("div", { class: `turn ${writer}` },
    el("h4", {}, role || WROTE[writer], role ? el("small", {}, ` ${WROTE[writer]}`) : null), textBox(each, { query: search.shown }))));
}

// Score and label of each step of a solution.
function labeledSteps(text) {
  if (!text.steps) return null;
  return el("div", { class: "turns" }, text.steps.map(([words, score, label], at) => {
    const right = (score > 0) === (label > 0.5);
    return el("div", { class: `turn ${right ? "policy" : "environment"}` },
      el("h4", {}, `step ${at + 1}: score ${number(score, 3)}, label ${number(label, 3)} `, el("span", { class: right ? "tag" : "tag bad" }, right ? "right" : "wrong")), textBox(words));
  }));
}

// The numbers of the same row at the other steps that recorded it.
async function sameRow(run, step, row) {
  const described = RUNS[run];
  if (!described.prompts) return null;
  const prompts = await part(described.prompts);
  const others = described.steps.filter((each, at) => each !== step && each.set === step.set && prompts[at].includes(promptOf(row.uid))).slice(-40);
  if (!others.length) return el("p", { class: "dim" }, `No other ${step.set === TRAINING ? "step" : "evaluation"} in this page recorded this row.`);
  const lines = await Promise.all(others.map(async (each) => {
    const found = (await rowsOf(each)).find((other) => promptOf(other.uid) === promptOf(row.uid) && other.uid.split(".")[2] === row.uid.split(".")[2]);
    return found && el("tr", {}, el("th", {}, link(unitHash(run, each, found), `step ${each.step}`)), el("td", {}, number(lossOf(found))), el("td", {}, number(numberIn(found, "margin"))), el("td", {}, rightTag(found) ?? "–"));
  }));
  return el("div", { class: "card wide" }, el("h2", {}, `The same row at other ${step.set === TRAINING ? "steps" : "evaluations"}`),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["step", "loss", "margin", "told"].map((name) => el("th", {}, name)))), el("tbody", {}, lines.filter(Boolean)))));
}
