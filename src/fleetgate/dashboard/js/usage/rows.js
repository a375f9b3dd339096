// The rows of tables with usage: calls, tokens and cost.
import { attr, h, show, text } from "../base/dom.js";
import { count, some } from "../base/format.js";
import { compact, costText, exactly } from "../base/money.js";
import { makeRow } from "../base/table.js";

/** @type {[string, string][]} */
export const NUMBERS = [["calls", "Calls"], ["input", "Input"], ["cache", "Cached"], ["out", "Output"], ["cost", "Cost"]];

/** A row; with `open`, its name is a button. @param {((name: any) => void) | null} open */
export function makeUsageRow(open) {
  const { node, cells } = makeRow(["name", ...NUMBERS.map(([name]) => name)]);
  for (const [name, title] of NUMBERS) cells[name].dataset.label = title;
  const p = (node.parts = {
    swatch: h("i", { class: "swatch" }),
    name: open ? h("button", { type: "button", class: "command", on: { click: () => open(node.name) } }) : h("span", { class: "usage-name" }),
    under: h("span", { class: "usage-under" }),
    calls: cells.calls, input: cells.input, cache: cells.cache, out: cells.out,
    cost: h("span", {}),
    note: h("span", { class: "usage-note" }),
  });
  cells.name.append(h("span", { class: "usage-title" }, p.swatch, p.name), p.under);
  cells.cost.append(p.cost, p.note);
  return node;
}

/** @param {any} node @param {{name: any, title: string, sum: import("./sums.js").Sum, under?: string}} row @param {number | null} color  null: none */
export function changeUsageRow(node, { name, title, sum, under = "" }, color, label = "") {
  node.name = name;
  const p = node.parts;
  show(p.swatch, color !== null);
  attr(p.swatch, "class", `swatch c${color}`);
  text(p.name, title);
  attr(p.name, "title", title);
  if (label) attr(p.name, "aria-label", label);
  text(p.under, under);
  number(p.calls, sum.calls);
  number(p.input, sum.input);
  number(p.cache, sum.cache_read + sum.cache_write, `${count(sum.cache_read)} read from the cache, ${count(sum.cache_write)} written to it`);
  number(p.out, sum.output);
  text(p.cost, costText(sum));
  attr(p.cost, "title", sum.cost === null ? null : exactly(sum.cost / 1e6));
  attr(p.cost, "class", sum.cost === null && !sum.complete ? "unknown" : null);
  const notes = [];
  if (sum.cost !== null && !sum.complete) notes.push("part unknown");
  if (sum.estimated) notes.push(sum.estimated === sum.calls ? "estimated" : `${count(sum.estimated)} estimated`);
  if (sum.partial) notes.push(`${count(sum.partial)} broke off`);
  text(p.note, notes.join(", "));
  const titles = [];
  if (sum.estimated) titles.push(`${some(sum.estimated, "call")} ended unseen: what was reserved for them counts.`);
  if (sum.partial) titles.push(`${some(sum.partial, "response")} broke off: what had arrived counts.`);
  attr(p.note, "title", titles.join(" ") || null);
}

function number(node, value, title = "") {
  text(node, compact(value));
  attr(node, "title", title || count(value));
}

/** The last row of a table. */
export function totalRow() {
  const foot = h("tfoot", { role: "rowgroup" });
  const node = makeUsageRow(null);
  node.removeAttribute("tabindex");
  foot.append(node);
  return foot;
}
