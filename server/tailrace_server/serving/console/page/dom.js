// Elements from data, and a tree that takes the place of another one without losing focus, scroll or what was typed.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "path", "circle", "text", "title", "polyline", "line"]);
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit"];

// Returns an element. Text is never parsed as HTML; a member that begins with "on" is a handler.
export function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Makes the children of `parent` those that are given, and changes only what differs.
export function show(parent, ...children) {
  morphChildren(parent, children.flat(Infinity).filter(Boolean));
}

function morphChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let present = parent.firstChild;
  for (const child of wanted) {
    const node = typeof child === "string" ? document.createTextNode(child) : child;
    const same = keyed.get(keyOf(node));
    if (same) { // a row that is there already, perhaps at another place
      keyed.delete(keyOf(node));
      if (same === present) present = present.nextSibling;
      else parent.insertBefore(same, present);
      morph(same, node);
    } else if (present !== null && !keyOf(node) && isAlike(present, node)) {
      const next = present.nextSibling;
      morph(present, node);
      present = next;
    } else {
      parent.insertBefore(node, present);
    }
  }
  while (present !== null) {
    const next = present.nextSibling;
    present.remove();
    present = next;
  }
}

function isAlike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
}

function keyOf(node) {
  return node.getAttribute?.("data-key") ?? "";
}

function morph(present, wanted) {
  if (present.nodeType !== Node.ELEMENT_NODE) {
    if (present.data !== wanted.data) present.data = wanted.data;
    return;
  }
  for (const { name } of [...present.attributes]) if (!wanted.hasAttribute(name)) present.removeAttribute(name);
  for (const { name, value } of wanted.attributes) {
    if (present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
  for (const name of HANDLERS) present[name] = wanted[name];
  if (present.nodeName !== "TEXTAREA") morphChildren(present, [...wanted.childNodes]);
}

// Returns a table. A column is {name, cell(row), number?, sort?(row), wide?}. `sorted` is {by, down, change(by)}, or null.
export function table(columns, rows, { key, rowClass = () => null, sorted = null, empty = "None." }) {
  if (!rows.length) return h("p", { class: "muted" }, empty);
  const column = sorted && columns.find((one) => one.name === sorted.by);
  const ordered = column ? [...rows].sort((a, b) => compare(column.sort(a), column.sort(b)) * (sorted.down ? -1 : 1)) : rows;
  const heads = columns.map((one) => {
    const isSorted = column === one;
    const label = sorted && one.sort
      ? h("button", { type: "button", onclick: () => sorted.change(one.name) }, one.name, isSorted ? (sorted.down ? " ▼" : " ▲") : "")
      : one.name;
    return h("th", { scope: "col", class: one.number ? "number" : null, "aria-sort": isSorted ? (sorted.down ? "descending" : "ascending") : null }, label);
  });
  const body = ordered.map((row) => h("tr", { "data-key": key(row), class: rowClass(row) }, columns.map((one) => {
    return h("td", { class: one.number ? "number" : one.wide ? "wide" : null, "data-name": one.name }, one.cell(row) ?? "");
  })));
  return h("table", { class: "stack" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b);
  return (a ?? -1) - (b ?? -1);
}

export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

const STATES = {
  moving: "good", current: "good", leads: "good", follows: "good", leader: "good", follower: "good",
  idle: "idle", unknown: "idle", waiting: "warn", silent: "bad", away: "bad", refused: "bad", stuck: "bad", failed: "bad",
};

// A state in words, with a shape and a colour.
export function state(name, text = name) {
  return h("span", { class: `state ${STATES[name] ?? "idle"}` }, text);
}

export function isBad(name) {
  return STATES[name] === "bad";
}
