// A table whose rows become cards on a narrow screen. Roles are written out: with another layout, browsers forget them.
import { h } from "./dom.js";
import { rove } from "./roving.js";

/**
 * @param {string} label
 * @param {[string, string][]} columns  class and title; a title in parentheses is for screen readers only
 */
export function makeTable(label, columns) {
  const heads = columns.map(([name, title]) => {
    const hidden = title.startsWith("(");
    const words = hidden ? h("span", { class: "sr", text: title.slice(1, -1) }) : title;
    return h("th", { class: name, scope: "col", role: "columnheader" }, words);
  });
  const body = h("tbody", { role: "rowgroup" });
  const table = h("table", { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), body);
  rove(body);
  return { table, body };
}

/** A row with one cell for each of these classes. */
export function makeRow(names) {
  const cells = Object.fromEntries(names.map((name) => [name, h("td", { class: name, role: "cell" })]));
  const node = /** @type {any} */ (h("tr", { role: "row", tabindex: "-1" }, ...Object.values(cells)));
  return { node, cells };
}

/** The text of an empty list; commands in backquotes are shown as code. */
export function nothing(title, hint) {
  return h("div", { class: "nothing" }, h("p", { class: "nothing-title", text: title }), h("p", {}, ...hint.split("`").map((part, at) => (at % 2 ? h("code", { text: part }) : part))));
}
