// The view of a difference: one prompt at two steps, word by word.

const MOST_WORDS = 3000;

async function diffView(run, set, number_, name, other) {
  const [one, two] = [stepAt(run, set, number_), stepAt(run, set, Number(other))].sort((a, b) => (a?.step ?? 0) - (b?.step ?? 0));
  if (!one || !two) return nothing("One of these steps is not in this page.");
  const prompt = promptOf(`${name}.0.0`);
  const of = async (step) => sorted((await rowsOf(step)).filter((row) => promptOf(row.uid) === prompt), "best");
  const [left, right] = [await of(one), await of(two)];
  if (!left.length || !right.length) return nothing("One of these steps has no rollout of this prompt.");
  const state = { left: left[0].uid, right: right[0].uid };
  const shown = el("div", {});
  keys.up = hashOf("group", run, set, number_, name);
  const draw = async () => {
    const [a, b] = [left.find((row) => row.uid === state.left), right.find((row) => row.uid === state.right)];
    const [before, after] = (await Promise.all([textOf(a), textOf(b)])).map((text) => text.turns.filter(([writer]) => writer !== "prompt").map(([, , each]) => each).join(""));
    const { parts: found, exact } = differences(before, after);
    const box = el("div", { class: "text" });
    for (const [kind, text] of found) {
      if (kind === " ") box.append(el("span", {}, nodesOf(text)));
      else box.append(el(kind === "-" ? "del" : "ins", {}, nodesOf(text)));
    }
    shown.replaceChildren(el("p", {}, `reward ${number(a.reward)} → ${number(b.reward)}, ${plural(a.length, "character")} → ${plural(b.length, "character")}`),
      exact ? "" : el("p", { class: "dim" }, "These texts are too long or too different for a comparison by words: what is between their equal ends is shown whole."), box);
  };
  const choice = (label, rows, side) => select(label, rows.map((row) => [row.uid, `${row.uid}, reward ${number(row.reward, 3)}`]), state[side], (value) => { state[side] = value; draw(); });
  await draw();
  return el("section", {}, crumbs(run, set, one, link(keys.up, `group ${name}`), ` › steps ${one.step} and ${two.step}`),
    el("div", { class: "bar" }, choice(`step ${one.step}`, left, "left"), choice(`step ${two.step}`, right, "right")), el("div", { class: "card wide" }, shown));
}

// Pairs of " ", "-" or "+" and a text, with equal beginnings and ends taken off first; exact: false if the middle is
// too long for the table of common words.
function differences(before, after) {
  const [a, b] = [before.split(/(?<=\s)|(?=\s)/), after.split(/(?<=\s)|(?=\s)/)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const exact = left.length <= MOST_WORDS && right.length <= MOST_WORDS;
  const middle = exact ? byWords(left, right) : [["-", left.join("")], ["+", right.join("")]];
  const found = [[" ", a.slice(0, start).join("")], ...middle, [" ", a.slice(a.length - end).join("")]];
  return { parts: found.filter(([, text]) => text), exact };
}

// The longest common subsequence of words, by the table of its lengths.
function byWords(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const found = [];
  const add = (kind, word) => {
    if (found.length && found[found.length - 1][0] === kind) found[found.length - 1][1] += word;
    else found.push([kind, word]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { add(" ", a[i]); i++; j++; }
    else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) add("-", a[i++]);
    else add("+", b[j++]);
  }
  return found;
}
