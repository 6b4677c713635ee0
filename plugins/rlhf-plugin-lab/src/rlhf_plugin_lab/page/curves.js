// The view of curves: all metrics whose names have the words that are sought, several runs on one axis.

const HEADLINES = [/^reward\/mean$/, /^eval\/.*(pass@1|accuracy|reward|nll)$/, /accuracy|margin/, /^(sft\/nll|loss\/)/, /^kl\//,
  /entropy$/, /^response\/length_mean/, /grad_norm/];
const curves = { words: "", smoothing: 0, axis: "step", hidden: new Set() };

function rankOf(name) {
  const rank = HEADLINES.findIndex((pattern) => pattern.test(name));
  return rank < 0 ? HEADLINES.length + (name.startsWith("timing/") ? 1 : 0) : rank;
}

function metricNames() {
  const names = [...new Set(RUNS.flatMap((run) => run.metrics))];
  return names.sort((a, b) => rankOf(a) - rankOf(b) || a.localeCompare(b));
}

function matches(name, words) {
  return words.toLowerCase().split(/\s+/).every((word) => name.toLowerCase().includes(word));
}

async function linesOf(name) {
  const lines = [];
  for (const [run, described] of RUNS.entries()) {
    if (curves.hidden.has(run) || !described.series || !described.metrics.includes(name)) continue;
    const [steps, seconds, values] = (await part(described.series))[name];
    const xs = curves.axis === "step" ? steps : seconds;
    const smooth = curves.smoothing > 0 && values.length > 2 ? smoothed(values, curves.smoothing) : null;
    if (values.every((value) => value === null)) continue;
    lines.push({ run, points: values.map((value, at) => [xs[at], value]), smooth: smooth && smooth.map((value, at) => [xs[at], value]) });
  }
  return lines;
}

function curvesView() {
  const grid = el("div", { class: "charts" });
  const count = el("span", { class: "dim" });
  // Charts are drawn when they come near the screen: a run has more than a hundred.
  const watcher = new IntersectionObserver((entries) => entries.forEach(async (entry) => {
    if (!entry.isIntersecting) return;
    watcher.unobserve(entry.target);
    const lines = await linesOf(entry.target.dataset.name);
    if (lines.length) entry.target.replaceChildren(chart(entry.target.dataset.name, lines, curves.axis === "step" ? "step" : "s"));
    else entry.target.replaceChildren(el("figure", { class: "card" }, el("figcaption", {}, entry.target.dataset.name), "no values"));
  }), { rootMargin: "300px" });
  const draw = () => {
    const names = metricNames().filter((name) => matches(name, curves.words));
    count.textContent = plural(names.length, "metric");
    watcher.disconnect();
    grid.replaceChildren(...names.map((name) => {
      const place = el("div", { class: "place", "data-name": name });
      watcher.observe(place);
      return place;
    }));
    if (!names.length) grid.append(el("p", { class: "dim" }, metricNames().length ? `No metric has ${curves.words} in its name.` : "These runs recorded no metrics."));
  };
  const words = el("input", { type: "search", placeholder: "metric, such as reward or kl", value: curves.words, "aria-label": "metric name",
    oninput: later(() => { curves.words = words.value; draw(); }) });
  const weight = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: curves.smoothing, "aria-label": "smoothing",
    oninput: later(() => { curves.smoothing = Number(weight.value); draw(); }) });
  const runs = RUNS.length < 2 ? [] : RUNS.map((run, at) => {
    const box = el("input", { type: "checkbox", checked: !curves.hidden.has(at), onchange: () => {
      if (box.checked) curves.hidden.delete(at);
      else curves.hidden.add(at);
      draw();
    } });
    return el("label", { class: "run" }, box, swatch(at), ` ${run.name}`);
  });
  draw();
  return el("section", {},
    el("div", { class: "bar" }, words, el("label", { class: "field" }, el("span", {}, "smoothing"), weight),
      select("axis", [["step", "steps"], ["seconds", "seconds"]], curves.axis, (value) => { curves.axis = value; draw(); }), count),
    runs.length ? el("div", { class: "bar runs" }, runs) : null, grid);
}
