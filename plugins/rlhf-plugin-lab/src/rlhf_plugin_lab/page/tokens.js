// Tokens of a rollout, colored by one of their columns. A token has an address: .../t12.

const TOKEN_BLOCK = 800;
const COLUMN_NAMES = {
  rollout_logprob: "log-prob of the sampler", trainer_logprob: "log-prob of the trainer", ratio: "trainer's probability over the sampler's",
  reference_logprob: "log-prob of the reference", value: "value of the critic", advantage: "advantage", action: "mask", entropy: "entropy", version: "version of the weights",
  reference_log_ratio: "log-prob of the trainer above the reference", loss: "loss", clipped: "clipped",
};
const NO_TOKENS = "No tokens of this rollout are recorded. The tokens of the rollouts that --log.samples keeps are, with --observers.use token_files.";
const NO_LOSS = "Neither loss nor clipping is recorded: the trainer's backend does not tell them, the step did not train the policy, or the run was recorded before they were.";
const NO_ENTROPY = "No entropy is recorded. It is computed with --observers.use token_files where all of a batch is seen before its weights move: in a step of one update, or with --algo.loss.old_logprobs recompute.";
const tokens = { column: "" };

// without: what the page says where a column is not recorded; null: the tokens are those of an example.
function tokensBox(data, chosen, moved, without = { entropy: NO_ENTROPY, loss: NO_LOSS }) {
  const columns = Object.keys(data.columns);
  const column = columns.includes(tokens.column) ? tokens.column : (columns.includes("loss") && !without ? "loss" : columns[0] ?? "");
  const detail = el("div", { class: "detail", "aria-live": "polite" });
  const box = el("div", { class: "tokens", tabindex: "0", dir: "auto" });
  const legend = el("div", { class: "legend" });
  const state = { scale: null, name: column, chosen, spans: new Map() };
  const choose = (at, scroll = true) => {
    if (at < 0 || at >= data.text.length) return;
    state.spans.get(state.chosen)?.classList.remove("here");
    state.chosen = at;
    fillBlock(blocks[Math.floor(at / TOKEN_BLOCK)]);
    const span = state.spans.get(at);
    span.classList.add("here");
    if (scroll) span.scrollIntoView({ block: "center" });
    detail.replaceChildren(...filled(document.createDocumentFragment(), {}, [el("b", {}, `token ${at} `), el("code", {}, oneLine(data.text[at])), columns.map((name) => el("span", {}, ` ${COLUMN_NAMES[name] ?? name}: `, el("b", {}, number(data.columns[name][at]))))]).childNodes);
    moved(at);
  };
  const fillBlock = (block) => {
    if (block.filled) return;
    block.filled = true;
    block.element.replaceChildren(...data.text.slice(block.start, block.end).map((text, at) => tokenSpan(state, data, block.start + at, text)));
  };
  const blocks = [];
  for (let start = 0; start < data.text.length; start += TOKEN_BLOCK) {
    const element = el("span", { class: "tokenblock" }, "…");
    blocks.push({ start, end: Math.min(start + TOKEN_BLOCK, data.text.length), element, filled: false });
  }
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting) fillBlock(blocks.find((block) => block.element === entry.target));
  }), { rootMargin: "400px" });
  const paint = (name) => {
    tokens.column = state.name = name;
    state.scale = name ? scaleOf(name, data.columns[name]) : null;
    state.spans.clear();
    blocks.forEach((block) => { block.filled = false; watcher.unobserve(block.element); watcher.observe(block.element); });
    if (blocks.length) fillBlock(blocks[0]);
    legend.replaceChildren(...legendOf(state.scale, name));
    if (state.chosen !== null) choose(state.chosen, false);
  };
  box.append(...blocks.map((block) => block.element));
  box.addEventListener("click", (event) => event.target.dataset.at !== undefined && choose(Number(event.target.dataset.at), false));
  box.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    choose((state.chosen ?? -1) + by);
  });
  paint(column);
  if (chosen !== null) setTimeout(() => choose(chosen));
  const choice = columns.length ? select("color", columns.map((name) => [name, COLUMN_NAMES[name] ?? name]), column, paint) : el("span", { class: "dim" }, "no columns of numbers are recorded");
  const missing = Object.entries(without ?? {}).filter(([name]) => !columns.includes(name)).map(([, why]) => el("p", { class: "dim" }, why));
  return el("div", {}, el("div", { class: "bar" }, choice, legend), missing, detail, box);
}

function tokenSpan(state, data, at, text) {
  const span = el("span", { class: "token", "data-at": at }, nodesOf(text));
  const value = state.scale ? data.columns[state.name][at] : null;
  if (value !== null && value !== undefined) {
    const color = ramp(state.scale.stops, state.scale.share(value));
    span.style.backgroundColor = `rgb(${color.join(",")})`;
    span.style.color = inkOn(color);
  }
  state.spans.set(at, span);
  return span;
}

function legendOf(scale, name) {
  if (!scale) return [el("span", { class: "dim" }, name ? "no token has a value" : "")];
  const bar = el("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${scale.stops.map((color) => `rgb(${color.join(",")})`).join(", ")})`;
  return [el("span", {}, number(scale.low, 3)), bar, el("span", {}, number(scale.high, 3)), el("span", { class: "dim" }, scale.label)];
}
