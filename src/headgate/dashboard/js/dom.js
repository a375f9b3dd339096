// Making and changing elements. Text is only ever set as text: commands and evidence come from anybody.

const SVG = "http://www.w3.org/2000/svg";

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
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else attr(node, name, value);
  }
  for (const child of children) if (child !== null) node.append(child);
  return node;
}

/** Set an attribute if it is another one; null, undefined and false remove it. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Set the text if it is another one: what does not change is not laid out again. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
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
  const known = new Map([...parent.children].map((child) => [/** @type {any} */ (child).headgateKey, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = /** @type {any} */ (known.get(name));
    if (node === undefined) {
      node = make(item);
      node.headgateKey = name;
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
