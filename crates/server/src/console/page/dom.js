// Builds elements. Text is always text: nothing here interprets HTML.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

const shown = new Map();

// Replaces the content of a container if what it shows has changed. The focus stays on the
// element with the same data-key.
export function show(id, signature, build) {
  const text = JSON.stringify(signature);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  const container = byId(id);
  const focused = container.contains(document.activeElement) && document.activeElement.dataset.key;
  const top = container.scrollTop;
  container.replaceChildren(...[build()].flat(Infinity).filter(Boolean));
  container.scrollTop = top;
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

export const counted = (count, one, many) =>
  `${Number(count).toLocaleString("en")} ${Number(count) === 1 ? one : many}`;

export function bytes(count) {
  let value = Number(count || 0);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function micros(count) {
  const value = Number(count || 0);
  if (!value) return "–";
  if (value < 1000) return `${value} µs`;
  if (value < 1e6) return `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)} ms`;
  return `${(value / 1e6).toFixed(1)} s`;
}

export function duration(millis) {
  const seconds = Math.max(0, Number(millis || 0)) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const clock = (millis) =>
  new Date(Number(millis)).toLocaleTimeString("en-GB", { hour12: false }) +
  "." + String(Number(millis) % 1000).padStart(3, "0");
