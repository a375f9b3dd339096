// The server's time, and the elements that show how long ago or how long from now something is.
import { h, text } from "./dom.js";
import { duration, exact } from "./format.js";

let skewMs = 0;

/** Learn the server's time from the time in an answer. */
export function learn(iso) {
  if (iso) skewMs = Date.parse(iso) - Date.now();
}

/** Now, by the server. */
export const now = () => Date.now() + skewMs;

const MODES = {
  ago: (ms) => `${duration(-ms)} ago`,
  age: (ms) => duration(-ms),
  left: (ms) => (ms > 0 ? duration(ms + 999, true) : "now"),
};

/** A `<time>` that stays up to date; the exact time is its title. @param {"ago" | "age" | "left"} mode */
export function timeNode(iso, mode, props = {}) {
  const node = h("time", { ...props, "data-mode": mode });
  setTime(node, iso);
  return node;
}

export function setTime(node, iso) {
  if (!iso) {
    text(node, "");
    node.removeAttribute("datetime");
    node.removeAttribute("title");
    return;
  }
  if (node.dateTime !== iso) {
    node.dateTime = iso;
    node.title = exact(iso);
  }
  draw(node);
}

function draw(node) {
  if (node.dateTime) text(node, MODES[node.dataset.mode](Date.parse(node.dateTime) - now()));
}

/** A time, relative and exact; null for none. */
export function momentNode(iso, mode) {
  return iso ? h("span", {}, timeNode(iso, mode), h("span", { class: "exact", text: exact(iso) })) : null;
}

/** Update all times once a second while the page is visible. @param {() => void} then */
export function tick(then) {
  setInterval(() => {
    if (document.hidden) return;
    for (const node of document.querySelectorAll("time[data-mode]")) draw(node);
    then();
  }, 1000);
}
