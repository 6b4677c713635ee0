"use strict";
// Elements of the page. Texts become text nodes, never markup: no function here or elsewhere parses HTML.

function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function link(hash, ...children) {
  return el("a", { href: hash }, ...children);
}

function button(label, action, props = {}) {
  return el("button", { type: "button", onclick: action, ...props }, label);
}

function select(label, options, value, change) {
  const box = el("select", { onchange: () => change(box.value), "aria-label": label },
    options.map(([each, text]) => el("option", { value: each }, text)));
  box.value = value;
  return el("label", { class: "field" }, el("span", {}, label), box);
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en-US");
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

function hashOf(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

// A handler that is called again within the time is called once, at its end.
function later(action, milliseconds = 150) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...words), milliseconds);
  };
}
