// Many pools as a table: one row for each, below the name of its group. The heads sort it.
import { timeNode } from "../base/clock.js";
import { attr, h, reconcile, show, text } from "../base/dom.js";
import { count, some } from "../base/format.js";
import { icon } from "../base/icons.js";
import { drawButtons, drawName, drawState, togglePause } from "./card.js";
import { editPool } from "./dialogs.js";
import { look } from "../state/refresh.js";
import { keepOneStop } from "../base/roving.js";
import { drawSlots, isBlocking } from "./slots.js";
import { poolKey } from "../state/store.js";
import { makeRow, makeTable } from "../base/table.js";

/** @type {[string, string][]} */
const COLUMNS = [["name", "Pool"], ["use", "In use"], ["cells", "Slots"], ["state", "State"], ["wait", "Waiting"], ["do", "(Actions)"]];

/** The column that each order belongs to. */
const SORTED_BY = { name: "name", use: "use", state: "trouble", wait: "waiting" };

/** @param {string} label @param {(order: string) => void} sort  called with the order that a head stands for */
export function makePoolTable(label, sort) {
  const { table, body } = makeTable(label, COLUMNS);
  const heads = /** @type {HTMLElement[]} */ ([...table.querySelectorAll("th")]);
  for (const head of heads) {
    const order = SORTED_BY[head.className];
    if (order) head.replaceChildren(h("button", { type: "button", class: "sort", text: head.textContent, on: { click: () => sort(order) } }));
  }
  const node = h("div", { class: "card list pool-table" }, table);
  return {
    node,
    /** @param {[string, any[]][]} groups @param {string} order */
    draw(groups, order) {
      for (const head of heads) {
        const own = SORTED_BY[head.className];
        if (own) attr(head, "aria-sort", own !== order ? "none" : own === "name" ? "ascending" : "descending");
      }
      const rows = groups.flatMap(([group, members]) => [...(group ? [{ group, members }] : []), ...members.map((pool) => ({ pool }))]);
      reconcile(body, rows, (row) => (row.pool ? poolKey(row.pool) : `group ${row.group}`), (row) => (row.pool ? makePoolRow() : makeGroup()),
        (each, row) => (row.pool ? changePoolRow(each, row.pool) : changeGroup(each, row)));
      keepOneStop(body);
    },
  };
}

function makeGroup() {
  const node = /** @type {any} */ (h("tr", { role: "row", class: "group", tabindex: "-1" }));
  node.heading = h("strong", {});
  node.note = h("span", {});
  // The column of slots is not shown on narrow screens, so it has a cell of its own.
  node.append(h("th", { scope: "rowgroup", role: "rowheader", colspan: 2 }, node.heading, node.note),
    h("td", { class: "cells", role: "cell" }), h("td", { role: "cell", colspan: COLUMNS.length - 3 }));
  return node;
}

function changeGroup(node, { group, members }) {
  const sum = (field) => members.reduce((so, pool) => so + pool[field], 0);
  text(node.heading, group);
  const waiting = Math.max(...members.map((pool) => pool.queued)); // one request may wait for several of them
  text(node.note, `${some(members.length, "pool")}, ${count(sum("in_flight") + sum("foreign"))} in use${waiting ? `, ${count(waiting)} waiting` : ""}`);
}

function makePoolRow() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const p = (node.parts = {
    name: h("a", { class: "pool-name" }),
    kind: h("span", { class: "kind" }),
    use: cells.use,
    slots: h("div", { class: "slots", role: "img" }),
    state: h("span", { class: "chip" }),
    label: h("span", {}),
    until: timeNode(null, "left"),
    queue: h("button", { type: "button", class: "pool-queue", on: { click: () => look({ pool: poolKey(node.pool), query: "" }) } }),
    pause: h("button", { type: "button", class: "icon-button", on: { click: () => togglePause(node.pool) } }),
    edit: h("button", { type: "button", class: "icon-button", on: { click: () => editPool(node.pool) } }, icon("edit")),
  });
  p.state.append(p.label, " ", p.until);
  cells.name.append(p.name, " ", p.kind);
  cells.cells.append(p.slots);
  cells.state.append(p.state);
  cells.wait.append(p.queue);
  cells.do.append(p.pause, p.edit);
  return node;
}

function changePoolRow(node, pool) {
  node.pool = pool;
  const p = node.parts;
  const slots = drawState(node, p, pool);
  drawName(p, pool);
  text(p.use, pool.limit === null ? count(slots.taken) : `${count(slots.taken)} / ${count(pool.limit)}`);
  drawSlots(p.slots, pool);
  text(p.queue, `${count(pool.queued)} waiting`);
  attr(p.queue, "aria-label", `${count(pool.queued)} waiting for ${pool.pool}: show them`);
  show(p.queue, isBlocking(pool));
  drawButtons(p, pool);
}
