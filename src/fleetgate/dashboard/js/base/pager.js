// "1–50 of 10,000" with the pages before and after.
import { attr, h, show, text } from "./dom.js";
import { count } from "./format.js";
import { icon } from "./icons.js";

/** @param {string} what  of what, for screen readers  @param {(page: number) => void} go */
export function makePager(what, go) {
  let page = 0;
  const range = h("span", { class: "pager-text" });
  const previous = h("button", { type: "button", class: "icon-button", "aria-label": `Previous page of ${what}` }, icon("previous"));
  const next = h("button", { type: "button", class: "icon-button", "aria-label": `Next page of ${what}` }, icon("next"));
  previous.addEventListener("click", () => previous.getAttribute("aria-disabled") || go(page - 1));
  next.addEventListener("click", () => next.getAttribute("aria-disabled") || go(page + 1));
  const node = h("nav", { class: "pager", "aria-label": `Pages of ${what}`, hidden: true }, range, previous, next);
  return {
    node,
    /** @param {number} at @param {number} size @param {number} total */
    draw(at, size, total) {
      page = at;
      show(node, total > size);
      text(range, `${count(at * size + 1)}–${count(Math.min(total, (at + 1) * size))} of ${count(total)}`);
      attr(previous, "aria-disabled", at === 0 ? "true" : null);
      attr(next, "aria-disabled", (at + 1) * size >= total ? "true" : null);
    },
  };
}
