// The view of an episode: its numbers, its turns with roles, tools and images, its other paths, and its tokens.

async function episodeView(run, set, number_, uid, place) {
  const step = stepAt(run, set, number_);
  if (!step) return nothing(`${RUNS[run].name} has no ${setName(run, set)} rollouts of step ${number_} in this page.`);
  if (step.kind) return rowView(run, step, uid, place);
  const all = await rowsOf(step);
  const row = all.find((each) => each.uid === uid);
  if (!row) return nothing(`Step ${number_} has no rollout ${uid} in this page.`);
  const [text, data] = [await textOf(row), await tokensOf(row)];
  const group = sorted(all.filter((each) => each.group === row.group), steps.order);
  const at = group.indexOf(row);
  const to = (other) => hashOf("rollout", run, set, step.step, other.uid);
  keys.left = () => at > 0 && go(to(group[at - 1]));
  keys.right = () => at < group.length - 1 && go(to(group[at + 1]));
  keys.up = hashOf("group", run, set, step.step, row.group);
  const paths = all.filter((each) => episodeOf(each.uid) === episodeOf(uid));
  const chosen = place && /^t\d+$/.test(place) ? Math.min(Number(place.slice(1)), (data?.text.length ?? 1) - 1) : null;
  return el("section", {},
    crumbs(run, set, step, link(keys.up, `group ${row.group}`), " › ", el("strong", {}, uid)),
    el("div", { class: "bar" }, button("‹", keys.left, { "aria-label": "rollout before", disabled: at === 0 }), el("span", { class: "dim" }, `rollout ${at + 1} of ${group.length} of its group`),
      button("›", keys.right, { "aria-label": "next rollout", disabled: at === group.length - 1 })),
    paths.length > 1 ? el("p", {}, "Paths of this episode (forks and sub-agents): ", paths.map((each) => [each === row ? el("strong", {}, each.uid) : link(to(each), each.uid), " "])) : null,
    facts(row, text), replayPanel(run, set, step.step), imagesBox(text.images ?? []), turnsBox(text),
    data ? el("div", { class: "card wide" }, el("h2", {}, plural(data.text.length, "token"), el("small", { class: "dim" }, trainedOf(data))), tokensBox(data, chosen, (token) => {
      history.replaceState(null, "", hashOf("rollout", run, set, step.step, uid, `t${token}`));
    })) : set === TRAINING ? el("p", { class: "dim" }, NO_TOKENS) : null);
}

function facts(row, text) {
  const pairs = [["reward", number(row.reward)], ...row.rewards.map(([name, value]) => [`reward/${name}`, number(value)])];
  if (row.unshaped !== null) pairs.push(["before shaping", number(row.unshaped)]);
  pairs.push(["characters", number(row.length)], ["turns of the policy", number(row.turns)]);
  if (text.step_rewards) pairs.push(["step rewards (action: value)", text.step_rewards.map(([action, value]) => `${action}: ${number(value)}`).join(", ")]);
  for (const [name, value] of Object.entries(text.other ?? {})) pairs.push([`${name} (not known to this version)`, value]);
  return el("div", { class: "facts" }, el("dl", {}, el("dt", {}, "end"), el("dd", {}, endTag(row)), pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, nodesOf(value))])));
}

function imagesBox(images) {
  if (!images.length) return null;
  return el("div", { class: "images" }, images.map((image) => {
    const size = `${image.width ?? "?"} × ${image.height ?? "?"}${image.tokens ? `, tokens ${image.tokens[0]}–${image.tokens[1] - 1}` : ""}${image.time_s === undefined ? "" : `, at ${image.time_s.toFixed(2)} s`}`;
    if (!image.part) return el("figure", {}, el("div", { class: "gone" }, image.why), el("figcaption", {}, size));
    const shown = el("img", { alt: `image, ${size}` });
    if (image.width < 200) shown.classList.add("small");
    imageUrl(image).then((url) => { shown.src = url; }, (error) => shown.replaceWith(el("div", { class: "gone" }, String(error.message))));
    return el("figure", {}, shown, el("figcaption", {}, size));
  }));
}

function turnsBox(text) {
  if (text.missing) return el("p", { class: "dim" }, text.missing);
  const query = search.shown;
  const turns = text.turns.map(([writer, role, each]) => {
    const rest = writer === "prompt" && !role ? "prompt" : role || (writer === "policy" ? "policy" : "environment");
    return el("div", { class: `turn ${writer}` },
      el("h4", {}, rest, role && writer !== "prompt" ? el("small", {}, ` by the ${writer}`) : null), textBox(each, { query }));
  });
  return el("div", { class: "turns" }, turns);
}

// How many tokens the mask counts as the policy's: the others have no color and no gradient.
function trainedOf(data) {
  const mask = data.columns.action;
  return mask ? `, ${mask.filter((value) => value === 1).length} of them the policy's` : "";
}
