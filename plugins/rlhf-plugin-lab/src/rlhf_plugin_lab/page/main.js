// The frame of the page: navigation by the address behind #, keys, and the view that the address asks for.

const keys = { left: null, right: null, up: null };
const VIEWS = {
  curves: ["Curves", () => curvesView()],
  rollouts: ["Rollouts", (run) => lastStep(Number(run ?? 0))],
  runs: ["Runs and options", () => runsView()],
};
const INNER = {
  step: (run, set, step) => stepView(Number(run), set, Number(step)),
  group: (run, set, step, name) => groupView(Number(run), set, Number(step), name),
  rollout: (run, set, step, uid, place) => episodeView(Number(run), set, Number(step), uid, place),
  diff: (run, set, step, name, other) => diffView(Number(run), set, Number(step), name, other),
  search: (query) => searchView(query),
};
const HELP = [
  ["/", "search in all texts"], ["j k, ↓ ↑", "next and previous row"], ["Enter", "open the row"],
  ["← →", "previous and next step, group, rollout or token"], ["r", "replay from here: its fields"], ["u, Esc", "up: from a rollout to its group to its step"], ["?", "this help"],
];

function go(hash) {
  location.hash = hash;
}

function lastStep(run) {
  const described = RUNS[run];
  const found = described?.steps.filter((step) => step.set === TRAINING).at(-1) ?? described?.steps.at(-1);
  if (found) return stepView(run, found.set, found.step);
  const other = RUNS.findIndex((each) => each.steps.length);
  if (!described || other < 0) return nothing("These runs recorded no rollouts and no rows of examples: of each step as many are kept as --log.samples says.");
  return el("section", {}, el("div", { class: "bar" }, runSelect(run)), el("p", { class: "dim" }, `${described.name} recorded no rollouts.`));
}

function frame() {
  const box = el("input", { type: "search", id: "search", placeholder: "search texts  /", "aria-label": "search in all texts",
    onkeydown: (event) => {
      if (event.key !== "Enter" || !box.value) return;
      box.blur();
      go(hashOf("search", box.value));
    } });
  const onlyRows = RUNS.some((run) => run.steps.length) && RUNS.every((run) => run.steps.every((step) => step.kind));
  const tabs = Object.entries(VIEWS).map(([name, [label]]) => el("a", { href: hashOf(name), "data-tab": name }, name === "rollouts" && onlyRows ? "Rows" : label));
  const problems = RUNS.reduce((sum, run) => sum + run.problems.length, 0);
  if (problems) tabs.at(-1).append(el("span", { class: "badge", title: "notes on what is missing" }, String(problems)));
  const help = el("dialog", { id: "help" }, el("h2", {}, "Keys"), el("dl", {}, HELP.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    button("close", () => help.close()));
  return [el("header", { class: "top" }, el("strong", {}, "rlhf view"), el("nav", {}, tabs), box, button("?", () => help.showModal(), { "aria-label": "keys" })), el("main", { id: "main" }), help];
}

let shown = 0;

async function route() {
  const mine = ++shown;
  const words = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const view = VIEWS[words[0]]?.[1] ?? INNER[words[0]] ?? VIEWS[firstView()][1];
  const tab = INNER[words[0]] ? "rollouts" : VIEWS[words[0]] ? words[0] : firstView();
  document.querySelectorAll("[data-tab]").forEach((each) => each.toggleAttribute("aria-current", each.dataset.tab === tab));
  Object.assign(keys, { left: null, right: null, up: null });
  if (words[0] !== "rollout" && words[0] !== "search") search.shown = "";
  search.running += words[0] === "search" ? 0 : 1;
  let content;
  try {
    content = await view(...words.slice(1));
  } catch (error) {
    content = nothing(`This cannot be shown: ${error.message}`);
  }
  if (mine !== shown) return;
  document.getElementById("main").replaceChildren(content);
  scrollTo(0, 0);
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

function firstView() {
  return RUNS.some((run) => run.metrics.length) ? "curves" : RUNS.some((run) => run.steps.length) ? "rollouts" : "runs";
}

function typed(event) {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const within = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "Escape" && within) within.blur();
  if (within) return;
  const list = document.querySelector("row-list");
  const actions = {
    "/": () => document.getElementById("search").focus(), "?": () => document.getElementById("help").showModal(),
    j: () => list?.move(1), ArrowDown: () => list?.move(1), k: () => list?.move(-1), ArrowUp: () => list?.move(-1),
    PageDown: () => list?.move(15), PageUp: () => list?.move(-15), Enter: () => list?.enter(),
    r: replayFields, ArrowLeft: keys.left, ArrowRight: keys.right, u: keys.up && (() => go(keys.up)), Escape: keys.up && (() => go(keys.up)),
  };
  const moves = ["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Enter"].includes(event.key);
  if (moves && (!list || (event.key === "Enter" && event.target !== document.body && event.target !== list))) return;
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

document.getElementById("app").replaceChildren(...frame());
addEventListener("hashchange", route);
addEventListener("keydown", typed);
route();
