// Texts that models and environments wrote: as text nodes, with what is invisible made visible, long ones shortened.

const SHOWN_FIRST = 16000;
const SHOWN_LAST = 2000;
const BLOCK = 40000;
const SPECIAL = String.raw`<\|[^|<>\s]{1,60}\|>|<\/?(?:think|tool_call|tool_response|function_call|start_of_turn|end_of_turn|bos|eos|s)>`;
const INVISIBLE = String.raw`[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|(?<![\p{Extended_Pictographic}\ufe0f\p{Emoji_Modifier}])\u200d|\p{Cs}`;
const NAMES = {
  0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI",
  0x2068: "FSI", 0x2069: "PDI", 0x200e: "LRM", 0x200f: "RLM", 0x061c: "ALM", 0x200b: "ZWSP", 0x200c: "ZWNJ",
  0x200d: "ZWJ", 0xfeff: "BOM", 0x00ad: "SHY", 0x2028: "LS", 0x2029: "PS", 0x0000: "NUL", 0x001b: "ESC", 0x000d: "CR",
};

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

function markOf(character) {
  const code = character.codePointAt(0);
  const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  return el("span", { class: "invisible", title: `${hex}, which is not visible or changes how text runs` }, NAMES[code] ?? hex);
}

// The nodes of a short text.
function nodesOf(text, query = "") {
  const sought = query ? `|${escaped(query)}` : "";
  const pattern = new RegExp(`(?<special>${SPECIAL})|(?<invisible>${INVISIBLE})${sought}`, "giu");
  const nodes = [];
  let place = 0;
  for (const found of text.matchAll(pattern)) {
    if (found.index > place) nodes.push(text.slice(place, found.index));
    place = found.index + found[0].length;
    if (found.groups.invisible) nodes.push(markOf(found[0]));
    else if (found.groups.special) nodes.push(el("span", { class: "special" }, found[0]));
    else nodes.push(el("mark", {}, found[0]));
  }
  if (place < text.length) nodes.push(text.slice(place));
  return nodes;
}

// A text in blocks of which only those on the screen are laid out. Blocks end at ends of lines where there are some.
function blocksOf(text, query) {
  const blocks = [];
  for (let start = 0; start < text.length;) {
    let end = Math.min(start + BLOCK, text.length);
    const line = end < text.length ? text.lastIndexOf("\n", end) : -1;
    if (line > start) end = line + 1;
    else if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
    const shown = text.slice(start, end).replace(end < text.length ? /\n$/ : /$^/, "");
    blocks.push(el("div", { class: "block" }, nodesOf(shown, query)));
    start = end;
  }
  return blocks;
}

function textBox(text, { query = "", lines = false } = {}) {
  const box = el("div", { class: lines ? "text clipped" : "text", dir: "auto" });
  if (text.length <= SHOWN_FIRST + SHOWN_LAST) {
    box.append(...nodesOf(text, query));
    return box;
  }
  const hidden = text.length - SHOWN_FIRST - SHOWN_LAST;
  const all = button(`show all ${plural(text.length, "character")}`, () => {
    box.replaceChildren(...blocksOf(text, query));
  });
  box.append(
    el("div", {}, nodesOf(text.slice(0, SHOWN_FIRST), query)),
    el("div", { class: "cut" }, `${plural(hidden, "character")} not shown `, all),
    el("div", {}, nodesOf(text.slice(-SHOWN_LAST), query)),
  );
  return box;
}

// A line of a text for lists: ends of lines as a mark.
function oneLine(text, query = "") {
  return nodesOf(text.replace(/\n/g, "⏎"), query);
}
