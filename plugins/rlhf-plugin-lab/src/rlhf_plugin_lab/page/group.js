// The view of a group: rollouts of one prompt side by side, and the other steps in which the prompt came.

async function groupView(run, set, number_, name) {
  const step = stepAt(run, set, number_);
  if (!step) return nothing(`${RUNS[run].name} has no ${setName(run, set)} rollouts of step ${number_} in this page.`);
  if (step.kind) return pairView(run, step, name);
  const rows = (await rowsOf(step)).filter((row) => row.group === name);
  if (!rows.length) return nothing(`Step ${number_} has no group ${name} in this page.`);
  const all = await rowsOf(step);
  const range = rangeOf(rows);
  const cards = el("div", { class: "columns" });
  const draw = async () => {
    const order = steps.order;
    const texts = await Promise.all(sorted(rows, order).map(async (row) => [row, await textOf(row)]));
    cards.replaceChildren(...texts.map(([row, text]) => rolloutCard(run, set, step, row, text, range)));
  };
  const prompt = (await textOf(rows[0])).turns.filter(([writer]) => writer === "prompt").map(([, , text]) => text).join("");
  const names = [...new Set(all.map((row) => row.group))];
  const at = names.indexOf(name);
  keys.left = () => at > 0 && go(hashOf("group", run, set, step.step, names[at - 1]));
  keys.right = () => at < names.length - 1 && go(hashOf("group", run, set, step.step, names[at + 1]));
  keys.up = hashOf("step", run, set, step.step);
  await draw();
  return el("section", {},
    crumbs(run, set, step, el("strong", {}, `group ${name}`)),
    el("div", { class: "bar" }, button("‹", keys.left, { "aria-label": "group before", disabled: at === 0 }),
      el("span", { class: "dim" }, `group ${at + 1} of ${names.length}`), button("›", keys.right, { "aria-label": "next group", disabled: at === names.length - 1 }),
      select("sort", Object.entries(SORTS).map(([key, [label]]) => [key, label]), steps.order, (value) => { steps.order = value; draw(); })),
    el("details", { class: "card wide", open: prompt.length < 3000 }, el("summary", {}, "prompt"), textBox(prompt)),
    cards, replayPanel(run, set, step.step), await otherSteps(run, set, step, name));
}

function crumbs(run, set, step, ...rest) {
  return el("nav", { class: "crumbs" }, RUNS.length > 1 ? [swatch(run), ` ${RUNS[run].name} › `] : null,
    link(hashOf("step", run, set, step.step), `${set === TRAINING ? "" : `${setName(run, set)}, `}step ${step.step}`), " › ", rest);
}

function rolloutCard(run, set, step, row, text, range) {
  const answer = text.turns.filter(([writer]) => writer !== "prompt");
  const policyAlone = answer.every(([writer]) => writer === "policy");
  return el("article", { class: "card rollout" },
    el("header", {}, link(hashOf("rollout", run, set, step.step, row.uid), el("code", {}, row.uid)), endTag(row)),
    el("div", { class: "score" }, el("b", {}, number(row.reward)), rewardBar(row.reward, range)),
    row.rewards.length > 1 ? el("p", { class: "dim" }, row.rewards.map(([name, value]) => `${name} ${number(value, 3)}`).join(" · ")) : null,
    el("p", { class: "dim" }, `${plural(row.length, "character")}, ${plural(row.turns, "turn")}`),
    text.missing ? el("p", { class: "dim" }, text.missing) : null,
    policyAlone ? textBox(answer.map(([, , each]) => each).join(""), { lines: true })
      : el("div", { class: "clipped" }, answer.map(([writer, role, each]) => el("div", { class: `turn ${writer}` }, el("h4", {}, role || writer), textBox(each)))));
}

// Links to the differences between this group and the same prompt at other steps.
async function otherSteps(run, set, step, name) {
  const described = RUNS[run];
  if (!described.prompts) return null;
  const prompts = await part(described.prompts);
  const prompt = promptOf(`${name}.0.0`);
  const others = described.steps.map((each, at) => [each, prompts[at]]).filter(([each, of]) => each.set === set && each !== step && of.includes(prompt));
  if (!others.length) return el("p", { class: "dim" }, "No other step in this page has this prompt.");
  return el("p", {}, "The same prompt at other steps, as a difference: ",
    others.slice(-40).map(([each]) => [link(hashOf("diff", run, set, step.step, name, each.step), `step ${each.step}`), " "]));
}
