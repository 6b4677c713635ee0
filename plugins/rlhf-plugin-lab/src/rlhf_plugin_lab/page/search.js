// Search through all texts of the page: chunk by chunk, with hits as they come.

const MOST_HITS = 2000;
const search = { shown: "", running: 0 };

async function searchView(query) {
  search.shown = query;
  const mine = ++search.running;
  const hits = [];
  const count = el("p", { class: "dim" }, "searching");
  const list = el("row-list", { class: "rows" });
  const view = el("section", { class: "fill" }, el("h2", {}, "Rollouts with ", el("mark", {}, nodesOf(query))), count, list);
  const open = (hit) => go(hashOf("rollout", hit.run, hit.set, hit.step, hit.row.uid));
  const draw = (hit) => [el("code", {}, `${RUNS.length > 1 ? `${RUNS[hit.run].name} ` : ""}step ${hit.step}`), el("b", { class: "number" }, number(hit.row.reward, 3)),
    el("span", { class: "dim less" }, hit.row.uid), el("span", { class: "preview" }, oneLine(hit.around, query))];
  list.fill(hits, draw, open);
  lookThrough(query.toLowerCase(), (hit) => hits.push(hit), (done, total) => {
    if (mine !== search.running) return false;
    const full = hits.length >= MOST_HITS;
    count.textContent = `${plural(hits.length, "rollout")}${full ? ", and more" : ""}; looked at ${done} of ${plural(total, "step")}`;
    list.fill(hits, draw, open, list.chosen);
    return !full;
  }).catch((error) => { count.textContent = `The search ended: ${error.message}`; });
  return view;
}

async function lookThrough(query, hit, goesOn) {
  const all = RUNS.flatMap((run, at) => run.steps.map((step) => [at, step]));
  for (const [done, [run, step]] of all.entries()) {
    for (const row of await rowsOf(step)) {
      if (!row.place) continue;
      // Not by part(): the search would drive what is looked at out of the few parts that stay.
      const text = (await searched(row.place[0]))[row.place[1]].turns.map(([, , each]) => each).join("");
      const at = text.toLowerCase().indexOf(query);
      if (at >= 0) hit({ run, set: step.set, step: step.step, row, around: text.slice(Math.max(0, at - 40), at + 120) });
    }
    await new Promise((next) => setTimeout(next));
    if (!goesOn(done + 1, all.length)) return;
  }
}

let lastSearched = ["", null];

async function searched(name) {
  if (lastSearched[0] !== name) lastSearched = [name, unpacked(name)];
  return lastSearched[1];
}
