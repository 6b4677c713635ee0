// A list of any length, of which only the rows on the screen are elements. j, k and the arrows move, Enter opens.

const ROW_HEIGHT = 34;
const BEYOND = 12;

class RowList extends HTMLElement {
  // items: anything; draw(item) returns a row's children; open(item) is what Enter and a click do.
  fill(items, draw, open, chosen = 0) {
    Object.assign(this, { items, draw, open, chosen: Math.min(chosen, Math.max(items.length - 1, 0)) });
    if (!this.space) {
      this.space = el("div", { class: "space" });
      this.append(this.space);
      this.addEventListener("scroll", () => this.show(), { passive: true });
      new ResizeObserver(() => this.show()).observe(this);
    }
    this.tabIndex = 0;
    this.setAttribute("role", "listbox");
    this.space.style.height = `${items.length * ROW_HEIGHT}px`;
    this.drawn = null;
    this.show();
  }

  show() {
    if (!this.items) return;
    const first = Math.max(0, Math.floor(this.scrollTop / ROW_HEIGHT) - BEYOND);
    const last = Math.min(this.items.length, Math.ceil((this.scrollTop + this.clientHeight) / ROW_HEIGHT) + BEYOND);
    const drawn = `${first} ${last} ${this.chosen}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const rows = [];
    for (let at = first; at < last; at++) {
      const row = el("div", { class: at === this.chosen ? "row chosen" : "row", role: "option", "aria-selected": String(at === this.chosen),
        onclick: () => this.open(this.items[at]) }, this.draw(this.items[at]));
      row.style.top = `${at * ROW_HEIGHT}px`;
      rows.push(row);
    }
    this.space.replaceChildren(...rows);
  }

  move(by) {
    this.chosen = Math.min(Math.max(this.chosen + by, 0), this.items.length - 1);
    const top = this.chosen * ROW_HEIGHT;
    if (top < this.scrollTop) this.scrollTop = top;
    if (top + ROW_HEIGHT > this.scrollTop + this.clientHeight) this.scrollTop = top + ROW_HEIGHT - this.clientHeight;
    this.drawn = null;
    this.show();
  }

  enter() {
    if (this.items.length) this.open(this.items[this.chosen]);
  }
}

customElements.define("row-list", RowList);

// A bar of a reward between the lowest and the highest of a step.
function rewardBar(value, [low, high]) {
  const bar = el("span", { class: "rewardbar", "aria-hidden": "true" });
  if (value === null) return bar;
  const fill = el("span", {});
  fill.style.width = `${high > low ? 4 + (96 * (value - low)) / (high - low) : 50}%`;
  bar.append(fill);
  return bar;
}

function rangeOf(rows) {
  const known = rows.map((row) => row.reward).filter((value) => value !== null);
  return [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
}

function endTag(row) {
  const failed = errorRank(row) < 3;
  const cut = row.truncated || ["length", "context", "turns"].includes(row.end);
  return el("span", { class: `tag ${failed ? "bad" : cut ? "warn" : ""}` }, endOf(row));
}
