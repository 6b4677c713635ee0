// Rows that are held out: the same ones at each evaluation, apart from those that a step trained on.

const MOST_EVALUATIONS = 40;
const NO_HELD_OUT_TOKENS = "No tokens of this row are recorded: the run was recorded without them.";

// Why a row has no tokens.
function noTokens(step) {
  return el("p", { class: "dim" }, step.set === TRAINING ? NO_ROW_TOKENS : NO_HELD_OUT_TOKENS);
}

// Means over the recorded rows of an evaluation, of a pair its numbers once.
async function meansOf(step) {
  const units = unitsOf(step, await rowsOf(step));
  const mean = (of) => {
    const known = units.map(of).filter((value) => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  return { step, count: units.length, loss: mean(lossOf), margin: mean((row) => numberIn(row, "margin")), right: mean((row) => numberIn(row, "right")) };
}

// A section for each held-out set of a run, or for the one that is shown: its last evaluations in a table.
async function heldOutRows(run, step) {
  const all = setsOf(run).filter((set) => set !== TRAINING && (step.set === TRAINING || step.set === set));
  const cards = await Promise.all(all.map((set) => heldOutCard(run, set, step)));
  return cards.filter(Boolean);
}

async function heldOutCard(run, set, shown) {
  const steps = stepsOf(run, set).filter((step) => step.kind).slice(-MOST_EVALUATIONS);
  if (!steps.length) return null;
  const evaluations = await Promise.all(steps.map(meansOf));
  const [first, last] = [evaluations[0], evaluations.at(-1)];
  const noun = steps[0].kind === "pair" ? "pair" : "row";
  const change = first === last ? number(last.loss) : `${number(first.loss)} at step ${first.step.step}, ${number(last.loss)} at step ${last.step.step}`;
  const line = (each) => el("tr", {}, el("th", {}, each.step === shown ? `step ${each.step.step}` : link(hashOf("step", run, set, each.step.step), `step ${each.step.step}`)),
    [each.loss, each.margin, each.right].map((value) => el("td", {}, number(value))));
  return el("details", { class: "card wide" }, el("summary", {}, `${setName(run, set)}: ${plural(last.count, noun)} of each evaluation, mean loss ${change}`),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["evaluation", "loss", "margin", "accuracy"].map((name) => el("th", {}, name)))), el("tbody", {}, evaluations.map(line)))));
}
