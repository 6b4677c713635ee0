// Replay from here: the command that trains steps again, with one option changed if you like, and what a replay found.

const REPLAY_METRICS = [
  "loss/policy", "loss/preference", "loss/nll", "loss/ranking", "loss/steps", "sft/nll", "distill/kl", "policy/grad_norm", "reward_model/grad_norm", "policy/ratio", "clip/fraction_low",
  "clip/fraction_high", "kl/ref", "reward/mean", "mismatch/logprob_diff_mean", "mismatch/logprob_diff_max", "mismatch/ess",
];
const MOST_AROUND = 100;
const PLAIN_WORD = /^[A-Za-z0-9_@%+=:,./-]+$/;
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const SHORT_ESCAPES = { "\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r" };

// A word that a POSIX shell reads as it is, as the page's Python quotes the run's name: what is seen is what is pasted.
function shellWord(word) {
  if (PLAIN_WORD.test(word)) return word;
  if (!HIDDEN.test(word)) return `'${word.replaceAll("'", `'"'"'`)}'`;
  return `$'${[...word].map((character) => SHORT_ESCAPES[character] ?? (HIDDEN.test(character) ? bytesIn(character) : character)).join("")}'`;
}

function bytesIn(character) {
  return [...new TextEncoder().encode(character)].map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
}

// A flag and its value; a value that looks like a flag, or is empty, is part of the flag's word.
function flagWords(path, value) {
  return value === "" || /^-/.test(value) ? shellWord(`--${path}=${value}`) : `--${path} ${shellWord(value)}`;
}

function copyable(label, title) {
  const command = el("code", { class: "command", dir: "ltr" });
  const copy = button("copy", async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(command);
      copy.textContent = "selected";
    }
  }, { "aria-label": `copy: ${label}` });
  const show = (text) => {
    command.textContent = text;
    copy.textContent = "copy";
  };
  return [el("p", { title }, el("span", { class: "dim" }, `${label} `), command, " ", copy), show];
}

function replayPanel(run, set, step) {
  const described = RUNS[run];
  if (set !== TRAINING || !described.replay) return null;
  const state = { first: step, last: step, path: "", value: "", out: "" };
  const [train, showTrain] = copyable("train again", "trains these steps again from the run's checkpoint; type it where the run was started");
  const [view, showView] = copyable("then look at it", "shows what the change did beside the run");
  const note = el("p", { class: "dim", role: "status" });
  const current = el("span", { class: "dim" });
  const draw = () => {
    const words = [described.replay, `--from ${state.first} --to ${state.last}`];
    if (state.path) words.push(flagWords(state.path, state.value));
    if (state.out) words.push(`--out ${shellWord(/^-/.test(state.out) ? `./${state.out}` : state.out)}`);
    showTrain(words.join(" "));
    const folder = state.out && shellWord(/^-/.test(state.out) ? `./${state.out}` : state.out);
    view.hidden = !folder;
    showView(`${described.replay.replace("rlhf replay", "rlhf view")} ${folder}`);
    note.textContent = state.last < state.first ? "The last step is before the first one." : state.path && state.value === described.options[state.path] ? "The option has this value already." : "";
    current.textContent = state.path ? `now ${described.options[state.path]}` : "";
  };
  const count = (label, key) => {
    const box = el("input", { type: "number", min: 1, max: described.last_step, value: String(state[key]), "aria-label": label, oninput: () => {
      state[key] = Math.min(Math.max(Math.round(Number(box.value)) || 1, 1), described.last_step);
      draw();
    } });
    return el("label", { class: "field" }, el("span", {}, label), box);
  };
  const value = el("input", { type: "text", "aria-label": "value of the option", disabled: true, oninput: () => { state.value = value.value; draw(); } });
  const choice = select("with", [["", "nothing changed"], ...described.changeable.map((path) => [path, path])], "", (path) => {
    state.path = path;
    value.disabled = !path;
    state.value = value.value = path ? described.options[path] : "";
    draw();
  });
  const out = el("input", { type: "text", placeholder: "runs/replayed", "aria-label": "folder that keeps the replay", oninput: () => { state.out = out.value.trim(); draw(); } });
  const found = el("div", {});
  draw();
  const panel = el("details", { class: "card replay" }, el("summary", {}, "replay from here"),
    el("div", { class: "bar" }, count("from", "first"), count("to", "last"), choice, value, current, el("label", { class: "field" }, el("span", {}, "keep in"), out)), note, train, view, found);
  replayTables(run, step).then((tables) => {
    if (!tables.length) return;
    panel.open = true;
    found.replaceChildren(...tables);
  }, (error) => { found.textContent = `The replay cannot be shown: ${error.message}`; });
  return panel;
}

function replayFields() {
  const panel = document.querySelector("details.replay");
  if (!panel) return;
  panel.open = true;
  panel.querySelector("input").focus();
}

// Tables of the replays of this run, or of which it is a part, whose span has the step.
function replayTables(run, step) {
  const mine = INDEX.replays.filter((each) => [each.of, each.original, each.changed].includes(run) && each.from <= step && step <= each.to);
  return Promise.all(mine.map((each) => replayTable(each, step)));
}

async function replayTable(replay, step) {
  const sides = [["recorded", replay.of], ["original", replay.original], ["changed", replay.changed]].filter(([, at]) => at !== null && RUNS[at].series);
  const series = await Promise.all(sides.map(([, at]) => part(RUNS[at].series)));
  const valueAt = (side, name, at) => {
    const known = series[side][name];
    const place = known ? known[0].indexOf(at) : -1;
    return place < 0 ? null : known[2][place];
  };
  const names = REPLAY_METRICS.filter((name) => series.some((each) => name in each));
  const rows = [];
  for (let at = Math.max(replay.from, step - MOST_AROUND); at <= Math.min(replay.to, step + MOST_AROUND); at++) {
    if (!names.some((name) => sides.some((_, side) => valueAt(side, name, at) !== null))) continue;
    rows.push(el("tr", { class: at === step ? "chosen" : null }, el("th", { scope: "row" }, `step ${at}`), names.map((name) => {
      const values = sides.map((_, side) => valueAt(side, name, at));
      const differs = values.some((value) => value !== values[0]);
      return el("td", { class: differs ? "number other" : "number" }, values.map((value) => number(value)).join(" / "));
    })));
  }
  const what = sides.map(([name]) => name).join(" / ");
  return el("div", {}, el("h3", {}, `Replayed, steps ${replay.from} to ${replay.to}`, replay.words ? [": ", el("code", {}, nodesOf(replay.words))] : ""),
    el("p", { class: "dim" }, `${what}. `, sides.map(([name, at]) => [link(hashOf("step", at, TRAINING, step), `${name} step ${step}`), " "])),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "step"), names.map((name) => el("th", {}, name)))), el("tbody", {}, rows))));
}
