// Line charts as SVG: any number of points, of which no more than two a pixel are drawn.

const CHART = { width: 420, height: 190, left: 52, right: 10, top: 10, bottom: 24 };

// Exponential moving average that begins at the first value: weights of values before the start are left out.
function smoothed(values, weight) {
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

function ticksOf(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw) ?? raw;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) {
    ticks.push(Math.abs(at) < step * 1e-9 ? 0 : Number(at.toPrecision(12)));
  }
  return ticks;
}

// Lowest and highest point of each of `columns` bins, in order.
function thinned(points, columns) {
  if (points.length <= columns * 2) return points;
  const kept = [];
  const size = points.length / columns;
  for (let bin = 0; bin < columns; bin++) {
    let low = null;
    let high = null;
    for (let at = Math.floor(bin * size); at < Math.floor((bin + 1) * size); at++) {
      if (points[at][1] === null) continue;
      if (low === null || points[at][1] < low[1]) low = points[at];
      if (high === null || points[at][1] > high[1]) high = points[at];
    }
    if (low !== null) kept.push(...(low === high ? [low] : low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function pathOf(points, x, y) {
  let path = "";
  let pen = "M";
  for (const [at, value] of points) {
    if (value === null) pen = "M";
    else {
      // A line of no length with round ends is a dot: what is seen of a value between two gaps.
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}${pen === "M" ? "h.01" : ""}`;
      pen = "L";
    }
  }
  return path;
}

function boundsOf(lines) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value).filter((value) => value !== null));
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  return [low, high];
}

// lines: {name, run, points: [[x, value or null]], smooth: same or null}
function chart(title, lines, unit) {
  const { width, height, left, right, top, bottom } = CHART;
  const ends = lines.flatMap((line) => [line.points[0][0], line.points[line.points.length - 1][0]]);
  const [first, last] = [Math.min(...ends), Math.max(...ends)];
  const [low, high] = boundsOf(lines);
  const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const box = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title });
  for (const tick of ticksOf(low, high, 6)) {
    box.append(svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }));
    box.append(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of ticksOf(first, last, 4)) {
    box.append(svg("text", { x: x(tick), y: height - 7, "text-anchor": "middle" }, number(tick)));
  }
  for (const line of lines) {
    const props = { stroke: runColor(line.run), "stroke-dasharray": runDash(line.run), class: "line" };
    const columns = width - left - right;
    if (line.smooth) box.append(svg("path", { ...props, class: "line faint", d: pathOf(thinned(line.points, columns), x, y) }));
    box.append(svg("path", { ...props, d: pathOf(thinned(line.smooth ?? line.points, columns), x, y) }));
    if (line.points.length < 3) {
      for (const [at, value] of line.points) {
        if (value !== null) box.append(svg("circle", { cx: x(at), cy: y(value), r: 3, fill: runColor(line.run) }));
      }
    }
  }
  return el("figure", { class: "card" }, el("figcaption", {}, title), box, readout(box, lines, { x, y, first, last, unit }));
}

// The values below a chart: the last ones, or those where the pointer is.
function readout(box, lines, place) {
  const { width, height, top, bottom, left, right } = CHART;
  const cursor = svg("line", { y1: top, y2: height - bottom, class: "cursor", visibility: "hidden" });
  const shown = el("div", { class: "readout" });
  box.append(cursor);
  const show = (at) => {
    shown.replaceChildren(...lines.map((line) => {
      const near = at === null ? line.points.length - 1 : nearest(line.points, at);
      const [where, value] = line.points[near];
      return el("span", {}, swatch(line.run), ` ${number(value)} `, el("small", {}, `${place.unit} ${number(where)}`));
    }));
  };
  box.addEventListener("pointermove", (event) => {
    const frame = box.getBoundingClientRect();
    const share = (((event.clientX - frame.left) / frame.width) * width - left) / (width - left - right);
    const at = place.first + Math.min(Math.max(share, 0), 1) * (place.last - place.first);
    cursor.setAttribute("x1", place.x(at));
    cursor.setAttribute("x2", place.x(at));
    cursor.setAttribute("visibility", "visible");
    show(at);
  });
  box.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    show(null);
  });
  show(null);
  return shown;
}

function nearest(points, at) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < at) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - at) <= Math.abs(points[high][0] - at) ? low : high;
}

function swatch(run) {
  const line = svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, stroke: runColor(run), "stroke-dasharray": runDash(run), class: "line" });
  return svg("svg", { viewBox: "0 0 18 10", class: "swatch", "aria-label": RUNS[run].name }, line);
}
