// Colors that people with any color vision tell apart: Okabe and Ito's for runs, viridis and blue-orange for numbers.

const RUN_COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
const DASHES = ["", "6 3", "2 2", "8 3 2 3"];
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const DIVERGING = [[0, 90, 160], [110, 170, 215], [245, 245, 245], [245, 170, 90], [190, 80, 0]];
const PLAIN = { action: "is an action" };

function runColor(run) {
  return RUN_COLORS[run % RUN_COLORS.length];
}

function runDash(run) {
  return DASHES[Math.floor(run / RUN_COLORS.length) % DASHES.length];
}

function ramp(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const at = Math.min(Math.floor(place), stops.length - 2);
  return stops[at].map((from, each) => Math.round(from + (stops[at + 1][each] - from) * (place - at)));
}

// Black or white, whichever is read on the color: by its relative luminance.
function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
}

function quantile(values, share) {
  return values[Math.min(values.length - 1, Math.max(0, Math.round(share * (values.length - 1))))];
}

// The scale of a column of tokens: what color a value has, and what its legend says.
function scaleOf(name, values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!known.length) return null;
  if (name === "action") {
    return { stops: VIRIDIS, low: 0, high: 1, label: "0: read, 1: written by the policy", share: (value) => 0.25 + value / 2 };
  }
  if (name === "clipped") {
    return { stops: DIVERGING, low: -1, high: 1, label: "-1: the low bound stopped it, 0: none did, 1: the high one", share: (value) => 0.5 + value / 2 };
  }
  if (name === "loss" && known[0] < 0) {
    const bound = Math.max(-quantile(known, 0.02), Math.abs(quantile(known, 0.98)), 1e-6);
    return { stops: DIVERGING, low: -bound, high: bound, label: "below and above 0", share: (value) => 0.5 + value / bound / 2 };
  }
  if (name === "advantage" || name === "ratio" || name === "reference_log_ratio") {
    const turn = name === "ratio" ? (value) => Math.log(Math.max(value, 1e-9)) : (value) => value;
    const widest = Math.max(Math.abs(turn(quantile(known, 0.02))), Math.abs(turn(quantile(known, 0.98))), 1e-6);
    const bound = name === "ratio" ? Math.exp(widest) : widest;
    return {
      stops: DIVERGING, low: name === "ratio" ? 1 / bound : -bound, high: bound,
      label: name === "ratio" ? "below and above 1" : "below and above 0", share: (value) => 0.5 + turn(value) / widest / 2,
    };
  }
  const [low, high] = [quantile(known, 0.02), quantile(known, 0.98)];
  return { stops: VIRIDIS, low, high, label: "lowest to highest", share: (value) => (high > low ? (value - low) / (high - low) : 0.5) };
}
