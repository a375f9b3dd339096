// The table of leases: running agents and calls.
import * as actions from "./actions.js";
import { setTime, timeNode } from "../base/clock.js";
import { showLease } from "./details.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, duration, some, who } from "../base/format.js";
import { icon } from "../base/icons.js";
import { spentText } from "../base/money.js";
import { makePager } from "../base/pager.js";
import { keepOneStop } from "../base/roving.js";
import { mayChange, onChange, store } from "../state/store.js";
import { makeRow, makeTable, nothing } from "../base/table.js";

/** @type {[string, string][]} */
const COLUMNS = [["what", "Command"], ["used", "Used"], ["age", "Running"], ["do", "(Actions)"]];
const PAGE = 15;

let page = 0;
const { table, body } = makeTable("Leases", COLUMNS);
const pager = makePager("the leases", (to) => {
  page = to;
  draw();
});
const empty = nothing("Nothing is running", "Agents started with `fleetgate run` and calls from the library are listed here.");

export function setUpLeases() {
  byId("lease-list").append(table, empty, pager.node);
  onChange(["leases", "session"], draw);
}

function draw() {
  const { leases } = store;
  page = Math.max(0, Math.min(page, Math.ceil(leases.length / PAGE) - 1));
  text(byId("running-count"), leases.length ? count(leases.length) : "");
  show(table, leases.length > 0);
  attr(table, "data-used", leases.some((lease) => lease.usage) ? "true" : null);
  show(empty, leases.length === 0);
  reconcile(body, leases.slice(page * PAGE, (page + 1) * PAGE), (lease) => lease.id, make, change);
  keepOneStop(body);
  pager.draw(page, PAGE, leases.length);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const p = (node.parts = {
    command: h("button", { type: "button", class: "command", on: { click: () => showLease(node.lease) } }),
    model: h("span", { class: "model" }),
    who: h("span", { class: "who" }),
    extra: h("span", { class: "extra" }),
    cost: h("span", { class: "used-cost" }),
    tokens: h("span", { class: "estimate" }),
    age: timeNode(null, "age"),
    waited: h("span", { class: "estimate" }),
    release: h("button", { type: "button", class: "icon-button", title: "Free the slot", on: { click: () => actions.release(node.lease) } }, icon("release")),
  });
  cells.what.append(p.command, h("p", { class: "under" }, p.model, p.extra, p.who));
  cells.used.append(p.cost, p.tokens);
  cells.age.append(p.age, p.waited);
  cells.do.append(p.release);
  return node;
}

function change(node, lease) {
  node.lease = lease;
  const p = node.parts;
  const name = lease.command || lease.id;
  text(p.command, name);
  attr(p.command, "title", lease.command);
  text(p.model, lease.model ?? "no model");
  text(p.who, who(lease.lives_with ?? lease.holder, lease.client, lease.child_pid));
  text(p.extra, extras(lease));
  const spent = spentText(lease.usage);
  text(p.cost, spent?.cost ?? "");
  text(p.tokens, spent?.tokens ?? "");
  attr(p.cost.parentElement, "title", spent?.all);
  setTime(p.age, lease.granted_at);
  text(p.waited, lease.waited_s >= 1 ? `waited ${duration(lease.waited_s * 1000)}` : "");
  show(p.release, mayChange());
  attr(p.release, "aria-label", `Free the slot: ${name}`);
  attr(node, "data-state", lease.gone ? "gone" : null);
}

function extras({ project, slots, claimed, gone, kind }) {
  const parts = kind === "agents" ? [] : [kind];
  if (project !== "default") parts.push(project);
  if (slots > 1) parts.push(some(slots, "slot"));
  if (!claimed) parts.push("granted, not started yet");
  if (gone) parts.push("process is gone");
  return parts.join(" · ");
}
