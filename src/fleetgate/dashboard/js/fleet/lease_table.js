// The table of leases: running agents and calls. It shows one page at a time.
import { setTime, timeNode } from "../base/clock.js";
import { attr, h, reconcile, show, text } from "../base/dom.js";
import { duration, some, titleOf, who } from "../base/format.js";
import { icon } from "../base/icons.js";
import { spentText } from "../base/money.js";
import { makePager } from "../base/pager.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable } from "../base/table.js";
import { itemAddress } from "../frame/pages.js";
import { mayChange, mayManage } from "../state/store.js";
import * as actions from "./actions.js";
import { showLease } from "./lease_details.js";
import { drawProject } from "./ticket_table.js";

/** @type {[string, string][]} */
const COLUMNS = [["what", "Command"], ["used", "Used"], ["age", "Running"], ["do", "(Actions)"]];
const PAGE = 15;

/** @param {string} label  for screen readers */
export function makeLeaseTable(label) {
  let page = 0;
  let known = [];
  const { table, body } = makeTable(label, COLUMNS);
  table.classList.add("leases");
  const pager = makePager("the leases", (to) => {
    page = to;
    draw(known);
  });

  /** @param {any[]} leases */
  function draw(leases) {
    known = leases;
    page = Math.max(0, Math.min(page, Math.ceil(leases.length / PAGE) - 1));
    show(table, leases.length > 0);
    attr(table, "data-used", leases.some((lease) => lease.usage) ? "true" : null);
    reconcile(body, leases.slice(page * PAGE, (page + 1) * PAGE), (lease) => lease.id, make, change);
    keepOneStop(body);
    pager.draw(page, PAGE, leases.length);
  }

  return { node: h("div", {}, table, pager.node), draw };
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  const p = (node.parts = {
    command: h("button", { type: "button", class: "command", on: { click: () => showLease(node.lease) } }),
    model: h("span", { class: "model" }),
    who: h("span", { class: "who" }),
    project: h("a", { class: "project" }),
    job: h("a", { class: "job-link" }),
    extra: h("span", { class: "extra" }),
    cost: h("span", { class: "used-cost" }),
    tokens: h("span", { class: "estimate" }),
    age: timeNode(null, "age"),
    waited: h("span", { class: "estimate" }),
    stop: h("button", { type: "button", class: "icon-button", title: "Stop", on: { click: () => actions.stop(node.lease) } }, icon("stop")),
    release: h("button", { type: "button", class: "icon-button", title: "Free the slot", on: { click: () => actions.release(node.lease) } }, icon("release")),
  });
  cells.what.append(p.command, h("p", { class: "under" }, p.model, p.job, p.project, p.extra, p.who));
  cells.used.append(p.cost, p.tokens);
  cells.age.append(p.age, p.waited);
  cells.do.append(p.stop, p.release);
  return node;
}

function change(node, lease) {
  node.lease = lease;
  const p = node.parts;
  const name = titleOf(lease);
  text(p.command, name);
  attr(p.command, "title", name);
  text(p.model, lease.model ?? "no model");
  text(p.who, who(lease.lives_with ?? lease.holder, lease.client, lease.child_pid));
  drawProject(p.project, lease.project);
  show(p.job, lease.job || Boolean(lease.output));
  text(p.job, lease.job ? "job, output" : "output");
  attr(p.job, "href", itemAddress(lease.job ? "jobs" : "leases", lease.id));
  attr(p.job, "aria-label", `${lease.job ? "job, output" : "output"}: ${name}`);
  text(p.extra, extras(lease));
  const spent = spentText(lease.usage);
  text(p.cost, spent?.cost ?? "");
  text(p.tokens, spent?.tokens ?? "");
  attr(p.cost.parentElement, "title", spent?.all);
  setTime(p.age, lease.granted_at);
  text(p.waited, lease.waited_s >= 1 ? `waited ${duration(lease.waited_s * 1000)}` : "");
  show(p.stop, mayManage() && lease.can_stop && !lease.stop_by);
  show(p.release, mayChange() && !lease.can_stop); // of a process that can be stopped, only its details offer it
  attr(p.release, "title", lease.cannot_stop ? `Free the slot. It cannot be stopped: ${lease.cannot_stop}` : "Free the slot");
  attr(p.stop, "aria-label", `Stop: ${name}`);
  attr(p.release, "aria-label", `Free the slot: ${name}`);
  attr(node, "data-state", lease.gone ? "gone" : null);
}

function extras({ slots, claimed, gone, kind, session, stop_by: stoppedBy }) {
  const parts = kind === "agents" ? [] : [kind];
  if (session) parts.push(`session ${session.slice(0, 8)}`);
  if (slots > 1) parts.push(some(slots, "slot"));
  if (!claimed) parts.push("granted, not started yet");
  if (stoppedBy) parts.push("stopping");
  if (gone) parts.push("process is gone");
  return parts.join(" · ");
}
