// Data of the page: the index, read at once, and parts, each unpacked when it is looked at.

const INDEX = JSON.parse(document.getElementById("index").textContent);
const RUNS = INDEX.runs;
const TRAINING = "";
const KEPT_PARTS = 64;
const parts = new Map();

function complete() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
}

// The text of a part's element. The browser may still be reading the file: the elements come in order.
async function packed(name) {
  let element = document.getElementById(name);
  if (element === null || element.nextSibling === null) {
    await complete();
    element = document.getElementById(name);
  }
  if (element === null) throw new Error(`the page has no part ${name}: the file is cut off`);
  return element.textContent;
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

async function unpacked(name) {
  const stream = new Blob([bytesOf(await packed(name))]).stream();
  return new Response(stream.pipeThrough(new DecompressionStream("gzip"))).json();
}

// The value of a part. The last ones stay, as the next look is often at the same.
function part(name) {
  const known = parts.get(name) ?? unpacked(name);
  parts.delete(name);
  parts.set(name, known);
  if (parts.size > KEPT_PARTS) parts.delete(parts.keys().next().value);
  return known;
}

async function imageUrl(image) {
  return `data:${image.kind};base64,${await packed(image.part)}`;
}

function stepsOf(run, set) {
  return RUNS[run].steps.filter((step) => step.set === set);
}

function setsOf(run) {
  return [...new Set(RUNS[run].steps.map((step) => step.set))].sort();
}

function setName(run, set) {
  if (set === TRAINING) return "training";
  return `${RUNS[run].steps.some((step) => step.set === set && step.kind) ? "held out:" : "evaluation"} ${set}`;
}

function stepAt(run, set, step) {
  return RUNS[run].steps.find((each) => each.set === set && each.step === step);
}

// uid is epoch.prompt.sample.segment: samples of a group share the first two, paths of an episode the first three.
function groupOf(uid) {
  const words = uid.split(".");
  return words.length === 4 ? `${words[0]}.${words[1]}` : uid;
}

function promptOf(uid) {
  const words = uid.split(".");
  return words.length === 4 ? words[1] : uid;
}

function episodeOf(uid) {
  const words = uid.split(".");
  return words.length === 4 ? words.slice(0, 3).join(".") : uid;
}

// Rows of a step's table as objects, made once for each table.
const tables = new WeakMap();

async function rowsOf(step) {
  const table = await part(step.part);
  if (!tables.has(table)) {
    const rewards = Object.entries(table.rewards);
    tables.set(table, table.uid.map((uid, at) => ({
      at, uid, group: groupOf(uid), reward: table.reward[at], unshaped: table.unshaped[at],
      length: table.length[at], turns: table.turns[at], truncated: table.truncated[at] === 1,
      end: table.end[at], preview: table.preview[at], place: table.place[at],
      asked: table.asked?.[groupOf(uid)] ?? "", chosen: table.chosen ? table.chosen[at] === 1 : null,
      rewards: rewards.map(([name, column]) => [name, column[at]]).filter(([, value]) => value !== null),
    })));
  }
  return tables.get(table);
}

const NOT_HERE = { turns: [], missing: "The text is not in this page: it was exported with a limit (--max-mb)." };

async function textOf(row) {
  if (!row.place) return NOT_HERE;
  return (await part(row.place[0]))[row.place[1]];
}

async function tokensOf(row) {
  if (!row.place || !row.place[2]) return null;
  return (await part(row.place[2]))[row.place[1]];
}

// Ends that are a failure come first where rows are sorted by error.
const FAILURES = ["environment_error", "timeout", "aborted", "context", "turns", "length"];

function errorRank(row) {
  const rank = FAILURES.indexOf(row.end);
  if (rank >= 0) return rank;
  return row.reward === null ? 1 : row.truncated ? FAILURES.length : FAILURES.length + 1;
}

function endOf(row) {
  if (!row.end) return row.truncated ? "truncated" : "not truncated";
  return row.truncated && !["length", "context"].includes(row.end) ? `${row.end}, truncated` : row.end;
}

const SORTS = {
  recorded: ["as recorded", (a, b) => a.at - b.at],
  best: ["reward, highest", (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity)],
  worst: ["reward, lowest", (a, b) => (a.reward ?? -Infinity) - (b.reward ?? -Infinity)],
  longest: ["length, longest", (a, b) => b.length - a.length],
  shortest: ["length, shortest", (a, b) => a.length - b.length],
  error: ["error first", (a, b) => errorRank(a) - errorRank(b)],
  end: ["stop reason", (a, b) => endOf(a).localeCompare(endOf(b))],
};

function sorted(rows, order) {
  const compare = (SORTS[order] ?? SORTS.recorded)[1];
  return [...rows].sort((a, b) => compare(a, b) || a.at - b.at);
}
