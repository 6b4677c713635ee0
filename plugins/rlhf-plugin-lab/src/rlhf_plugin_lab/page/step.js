// The view of a step: how its rewards and ends are spread, what filters dropped, and its groups or rollouts as a list.

const steps = { as: "groups", order: "recorded", words: "" };

async function stepView(run, set, number_) {
  const step = stepAt(run, set, number_);
  if (!step) return nothing(`${RUNS[run].name} has no ${setName(run, set)} rollouts of step ${number_} in this page.`);
  if (step.kind) return examplesView(run, step);
  const rows = await rowsOf(step);
  const list = el("row-list", { class: "rows" });
  const count = el("span", { class: "dim" });
  const range = rangeOf(rows);
  const draw = () => {
    const kept = steps.words ? rows.filter((row) => has(row, steps.words.toLowerCase())) : rows;
    if (steps.as === "groups") {
      const groups = groupsOf(kept, steps.order);
      count.textContent = `${plural(groups.length, "group")}, ${plural(kept.length, "rollout")}`;
      list.fill(groups, (group) => groupRow(group, range), (group) => go(hashOf("group", run, set, step.step, group.name)));
    } else {
      const shown = sorted(kept, steps.order);
      count.textContent = plural(shown.length, "rollout");
      list.fill(shown, (row) => rolloutRow(row, range), (row) => go(hashOf("rollout", run, set, step.step, row.uid)));
    }
  };
  const words = el("input", { type: "search", placeholder: "filter: words, stop reason, uid", value: steps.words, "aria-label": "filter",
    oninput: later(() => { steps.words = words.value; draw(); }) });
  const view = el("section", { class: "fill" }, stepBar(run, set, step), replayPanel(run, set, step.step), summary(rows, RUNS[run].fates[step.step], set),
    el("div", { class: "bar" },
      select("show", [["groups", "groups"], ["rollouts", "rollouts"]], steps.as, (value) => { steps.as = value; draw(); }),
      select("sort", Object.entries(SORTS).map(([key, [label]]) => [key, label]), steps.order, (value) => { steps.order = value; draw(); }),
      words, count), list);
  draw();
  return view;
}

function has(row, words) {
  return row.preview.toLowerCase().includes(words) || row.asked.toLowerCase().includes(words) || row.uid.includes(words) || endOf(row).includes(words);
}

function groupsOf(rows, order) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.group)) found.set(row.group, []);
    found.get(row.group).push(row);
  }
  const groups = [...found].map(([name, of], at) => {
    const known = of.map((row) => row.reward).filter((value) => value !== null);
    return {
      name, of, at, uid: name, preview: of[0].asked || of[0].preview, truncated: of.some((row) => row.truncated),
      reward: known.length ? known.reduce((a, b) => a + b, 0) / known.length : null,
      length: of.reduce((sum, row) => sum + row.length, 0) / of.length, end: sorted(of, "error")[0].end,
    };
  });
  return sorted(groups, order);
}

function groupRow(group, range) {
  const dots = el("span", { class: "dots", title: "rewards of the group, each a dot between the step's lowest and highest" });
  for (const row of group.of.slice(0, 64)) {
    if (row.reward === null) continue;
    const dot = el("i", {});
    dot.style.left = `${range[1] > range[0] ? (100 * (row.reward - range[0])) / (range[1] - range[0]) : 50}%`;
    dots.append(dot);
  }
  return [el("code", {}, group.name), el("b", { class: "number" }, number(group.reward, 3)), dots,
    el("span", { class: "dim less" }, plural(group.of.length, "rollout")), el("span", { class: "preview" }, oneLine(group.preview))];
}

function rolloutRow(row, range) {
  return [el("code", {}, row.uid), el("b", { class: "number" }, number(row.reward, 3)), rewardBar(row.reward, range),
    endTag(row), el("span", { class: "dim less" }, plural(row.length, "character")), el("span", { class: "preview" }, oneLine(row.preview))];
}

// The bar that chooses run, set and step; left and right arrows go to the next one.
function stepBar(run, set, step) {
  const all = stepsOf(run, set);
  const at = all.indexOf(step);
  const goTo = (place) => place >= 0 && place < all.length && go(hashOf("step", run, set, all[place].step));
  const slider = el("input", { type: "range", min: 0, max: all.length - 1, value: at, "aria-label": "step", onchange: () => goTo(Number(slider.value)) });
  keys.left = () => goTo(at - 1);
  keys.right = () => goTo(at + 1);
  return el("div", { class: "bar" }, runSelect(run), setSelect(run, set),
    el("span", { class: "together" }, button("‹", () => goTo(at - 1), { "aria-label": "step before", disabled: at === 0 }),
      el("strong", {}, `step ${step.step}`), button("›", () => goTo(at + 1), { "aria-label": "next step", disabled: at === all.length - 1 })),
    el("span", { class: "together" }, slider, el("span", { class: "dim" }, `${at + 1} of ${all.length}`)));
}

function runSelect(run) {
  if (RUNS.length < 2) return null;
  return select("run", RUNS.map((each, at) => [String(at), each.name]), String(run), (value) => go(hashOf("rollouts", value)));
}

function setSelect(run, set) {
  const sets = setsOf(run);
  if (sets.length < 2) return null;
  return select("of", sets.map((each) => [each, setName(run, each)]), set, (value) => go(hashOf("step", run, value, stepsOf(run, value).at(-1).step)));
}

function summary(rows, fate, set) {
  const known = rows.map((row) => row.reward).filter((value) => value !== null);
  const ends = new Map();
  for (const row of rows) ends.set(endOf(row), (ends.get(endOf(row)) ?? 0) + 1);
  const sources = new Map();
  for (const row of rows) {
    for (const [name, value] of row.rewards) {
      if (!sources.has(name)) sources.set(name, []);
      sources.get(name).push(value);
    }
  }
  const mean = (values) => number(values.reduce((a, b) => a + b, 0) / values.length);
  const groups = groupsOf(rows, "recorded").map((group) => group.of.map((row) => row.reward).filter((value) => value !== null)).filter((known) => known.length > 1);
  const equal = groups.filter((known) => known.every((value) => value === known[0])).length;
  const dropped = set === TRAINING && fate ? Object.entries(fate.dropped) : [];
  return el("div", { class: "facts" },
    el("div", {}, el("h3", {}, "reward"), known.length ? histogram(known) : "none recorded"),
    el("dl", {}, [...sources].slice(0, 12).map(([name, values]) => [el("dt", {}, `reward/${name}`), el("dd", {}, mean(values))]),
      [...ends].sort((a, b) => b[1] - a[1]).map(([name, count]) => [el("dt", {}, `ends: ${name}`), el("dd", {}, `${count} (${((100 * count) / rows.length).toFixed(0)} %)`)]),
      groups.length ? [el("dt", {}, "groups with one reward"), el("dd", { title: "their samples have nothing to compare" }, `${equal} of ${groups.length}`)] : null,
      dropped.map(([reason, what]) => [el("dt", {}, `dropped: ${reason}`), el("dd", { title: what.groups.join(", ") }, plural(what.number, "group"))])));
}

function histogram(values, what = "rewards", noun = "rollout") {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const bins = Array(24).fill(0);
  for (const value of values) bins[high > low ? Math.min(23, Math.floor(((value - low) / (high - low)) * 24)) : 11] += 1;
  const top = Math.max(...bins);
  const box = svg("svg", { viewBox: "0 0 240 66", class: "histogram", role: "img", "aria-label": `${what} from ${number(low)} to ${number(high)}` });
  bins.forEach((count, at) => {
    const height = count ? Math.max((48 * count) / top, 1) : 0;
    box.append(svg("rect", { x: at * 10 + 0.5, y: 50 - height, width: 9, height, class: "barfill" }, svg("title", {}, plural(count, noun))));
  });
  box.append(svg("text", { x: 0, y: 63 }, number(low)), svg("text", { x: 240, y: 63, "text-anchor": "end" }, number(high)));
  return box;
}

function nothing(text) {
  return el("section", {}, el("p", { class: "dim" }, text));
}
