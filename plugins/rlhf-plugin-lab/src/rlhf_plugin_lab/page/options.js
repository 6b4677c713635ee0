// The view of runs: what each is, what is missing of it, options that differ, and metrics side by side.

function runsView() {
  return el("section", {}, el("div", { class: "charts" }, RUNS.map((run, at) => runCard(run, at))), optionsTable(), RUNS.length > 1 ? metricsTable() : null);
}

function runCard(run, at) {
  const rollouts = run.steps.filter((step) => step.set === TRAINING).reduce((sum, step) => sum + step.count, 0);
  const facts = [
    run.command ? `rlhf ${run.command}` : "an unknown command", run.version, plural(run.last_step, "step"),
    plural(run.metrics.length, "metric"), plural(rollouts, run.steps.some((step) => step.kind) ? "training row" : "training rollout"),
  ];
  return el("div", { class: "card" },
    el("h2", {}, swatch(at), ` ${run.name}`), el("p", { class: "dim path" }, run.folder), el("p", {}, facts.filter(Boolean).join(" · ")),
    run.end ? el("p", {}, `The run was ${run.end}.`) : null,
    run.problems.length ? el("div", { class: "problems" }, el("strong", {}, "What is missing"), el("ul", {}, run.problems.map((line) => el("li", {}, nodesOf(line))))) : null);
}

function optionsTable() {
  const several = RUNS.length > 1;
  const state = { words: "", all: !several };
  const body = el("tbody");
  const note = el("p", { class: "dim" });
  const paths = [...new Set(RUNS.flatMap((run) => Object.keys(run.options)))].sort();
  const differs = (path) => new Set(RUNS.map((run) => run.options[path])).size > 1;
  const draw = () => {
    const shown = paths.filter((path) => matches(path, state.words) && (state.all || (path !== "output" && differs(path))));
    note.textContent = state.all || shown.length ? "" : "All options are the same.";
    body.replaceChildren(...shown.map((path) => el("tr", {}, el("th", { scope: "row" }, path), RUNS.map((run) => {
      const other = several && run.options[path] !== RUNS[0].options[path];
      return el("td", { class: other ? "other" : null, title: other ? `other than ${RUNS[0].name}` : null }, nodesOf((run.options[path] ?? "–").slice(0, 400)));
    }))));
  };
  const words = el("input", { type: "search", placeholder: "option", "aria-label": "option name", oninput: later(() => { state.words = words.value; draw(); }) });
  draw();
  return el("div", { class: "card wide" }, el("h2", {}, several ? "Options that differ" : "Options"),
    el("div", { class: "bar" }, words, several ? select("show", [["", "what differs"], ["all", "all"]], "", (value) => { state.all = value === "all"; draw(); }) : null),
    note, el("div", { class: "scroll" }, el("table", {}, head("option"), body)));
}

function head(first) {
  return el("thead", {}, el("tr", {}, el("th", {}, first), RUNS.map((run, at) => el("th", {}, swatch(at), ` ${run.name}`))));
}

function metricsTable() {
  const names = metricNames().filter((name) => !name.startsWith("timing/"));
  const rows = names.map((name) => el("tr", {}, el("th", { scope: "row" }, name), RUNS.map((run) => {
    const pair = run.first_last[name];
    return el("td", { class: "number" }, pair ? `${number(pair[0])} → ${number(pair[1])}` : "–");
  })));
  return el("div", { class: "card wide" }, el("h2", {}, "Metrics, first and last value"), el("div", { class: "scroll" }, el("table", {}, head("metric"), el("tbody", {}, rows))));
}
