// Making nodes. Text is always text: nothing that a server says is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// Replace the content of a node, unless it is the same already: a focused button stays focused.
export function fill(node, ...children) {
  const made = el(node.tagName, null, ...children);
  if (made.innerHTML === node.innerHTML && !node.querySelector("button")) return;
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  node.replaceChildren(...made.childNodes);
  if (focused) byId(focused)?.focus();
}

// A table with a caption for screen readers. Columns: [heading, class]; the first cell of a row is its header.
export function table(caption, columns, rows) {
  const head = columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name));
  const body = rows.map((cells) => el("tr", null, cells.map((cell, at) => {
    const kind = columns[at][1];
    return at ? el("td", { class: kind }, cell) : el("th", { scope: "row", class: kind }, cell);
  })));
  return el("table", null, el("caption", { class: "unseen" }, caption),
    el("thead", null, el("tr", null, head)), el("tbody", null, body));
}

// One figure of a description list: label, value, and what stands below it.
export function figure(label, name, value, raw, below) {
  const shown = value === null ? el("dd", { class: "none", "data-figure": name }, "no data yet")
    : el("dd", { "data-figure": name, "data-value": raw }, value);
  return el("div", null, el("dt", null, label), shown, el("dd", null, below ?? ""));
}
