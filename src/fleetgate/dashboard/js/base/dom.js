// Functions that create and change elements. Text is only ever set as text: commands and evidence can contain anything.

const SVG = "http://www.w3.org/2000/svg";

// Characters that show nothing and change how others are shown: control characters, marks that turn text around, marks
// without width. They are shown as what they are.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text from anywhere, without characters that hide or turn others. */
export function plain(value) {
  return value === null || value === undefined ? "" : String(value).replace(UNSEEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** @param {string} id */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/**
 * An element. `text` is its text, `on` its listeners by event, everything else an attribute; null leaves one out.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...(Node | string | null)} children
 */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. @returns {SVGElement} */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") node.textContent = plain(value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else attr(node, name, value);
  }
  for (const child of children) if (child !== null) node.append(typeof child === "string" ? plain(child) : child);
  return node;
}

/** Set an attribute if it is another one; null, undefined and false remove it. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : name === "title" || name === "aria-label" ? plain(value) : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Set the text if it is another one: what does not change is not laid out again. */
export function text(node, value) {
  const seen = plain(value);
  if (node.textContent !== seen) node.textContent = seen;
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Make the children of a parent match a list: kept by key, made, moved and removed as needed. The focus stays on what
 * had it; when that leaves, it goes to what took its place.
 * @template T
 * @param {HTMLElement} parent
 * @param {T[]} items
 * @param {(item: T) => string} key
 * @param {(item: T) => HTMLElement} make
 * @param {(node: HTMLElement, item: T) => void} update
 */
export function reconcile(parent, items, key, make, update) {
  const had = parent.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const place = had ? [...parent.children].findIndex((child) => child.contains(had)) : -1;
  const known = new Map([...parent.children].map((child) => [/** @type {any} */ (child).fleetgateKey, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = /** @type {any} */ (known.get(name));
    if (node === undefined) {
      node = make(item);
      node.fleetgateKey = name;
    }
    known.delete(name);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  for (const node of known.values()) node.remove();
  if (had && document.activeElement !== had) {
    if (had.isConnected) had.focus({ preventScroll: true });
    else focusable(parent.children[Math.min(place, parent.children.length - 1)])?.focus({ preventScroll: true });
  }
}

function focusable(node) {
  const wanted = "[tabindex='0'], button, a[href], input";
  return node?.matches(wanted) ? node : node?.querySelector(wanted);
}
