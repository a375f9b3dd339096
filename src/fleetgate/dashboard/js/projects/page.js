// The Projects page: a row for each project; and the page of one project, #/projects/NAME: its figures, budgets, agents, queue and jobs.
import { setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, isShort, shareLines, shareText, some } from "../base/format.js";
import { amountOf, compact, costText, figureOf } from "../base/money.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable, nothing } from "../base/table.js";
import { shareOf, standing } from "../budgets/reading.js";
import { makeLeaseTable } from "../fleet/lease_table.js";
import { makeTicketTable } from "../fleet/ticket_table.js";
import { address, eventsAddress, goTo, projectAddress } from "../frame/pages.js";
import { makeJobTable } from "../jobs/table.js";
import { look } from "../state/refresh.js";
import { scopeKey } from "../state/scope.js";
import { onChange, store } from "../state/store.js";
import { add, nothingUsed } from "../usage/sums.js";
import { projectsReader } from "./reading.js";

/** @type {[string, string][]} */
const COLUMNS = [["name", "Project"], ["running", "Running"], ["waiting", "Waiting"], ["oldest", "Longest wait"], ["share", "Share"], ["tokens", "Tokens, 24 h"], ["cost", "Cost, 24 h"]];

const { table, body } = makeTable("Projects", COLUMNS);
const empty = nothing("No projects", "Agents have one with `fleetgate run --project NAME`, or by the folder's settings. Projects with running or waiting agents, or with usage in the last day, are listed here.");
const waitForAll = h("p", { class: "nothing", text: "Loading projects…" });
const failed = h("p", { class: "nothing", role: "alert" });
const all = h("div", { class: "card list project-list" }, table, empty, waitForAll, failed);

const figures = h("dl", { class: "usage-figures project-figures" });
const budgets = h("ul", { class: "project-budgets" });
const shared = h("ul", { class: "project-shares", "aria-label": "Fair shares" });
const running = makeLeaseTable("Running agents of the project");
const waiting = makeTicketTable("Waiting agents of the project");
const jobs = makeJobTable("Jobs of the project");
const more = h("button", { type: "button", class: "link list-more", on: { click: () => {
  const { name } = store.route;
  goTo("fleet");
  look({ pool: "", query: name });
} } });
const parts = [["Running", running.node, "running"], ["Waiting", h("div", {}, waiting.node, more), "waiting"], ["Jobs", jobs.node, "jobs"]].map(([title, node, name]) => {
  const number = h("span", { class: "count" });
  const none = nothing(`Nothing ${title === "Jobs" ? "was submitted" : `is ${name}`}`, "");
  const loading = h("p", { class: "nothing", text: "Loading…" });
  return { name, none, loading, number, section: h("section", { class: "section", "aria-label": `${title} in this project` }, h("header", { class: "section-head" }, h("h3", { class: "part-title" }, title, " ", number)), h("div", { class: "card list" }, node, none, loading)) };
});
const links = h("p", { class: "links" });
const one = h("div", { class: "content" }, figures, shared, budgets, ...parts.map(({ section }) => section), links);

export function setUpProjects() {
  byId("projects-body").append(all, one);
  onChange(["route", "projects", "leases", "scope", "budgets", "session"], draw);
  onChange(["route", "phase"], () => projectsReader.poke());
}

function draw() {
  if (store.route.page !== "projects") return;
  const { name } = store.route;
  show(all, !name);
  show(one, Boolean(name));
  const title = byId("projects-title");
  text(title, name || "Projects");
  show(byId("projects-back"), Boolean(name));
  if (name) drawOne(name);
  else drawAll();
}

/** Projects at the gate, and those with usage. */
function drawAll() {
  const { phase, problem, list, usage } = store.projects;
  const rows = new Map(list.map((each) => [each.project, { ...each, sum: nothingUsed() }]));
  for (const row of usage) {
    const name = row.project || "default";
    if (!rows.has(name)) rows.set(name, { project: name, running: 0, waiting: 0, oldest: null, sum: nothingUsed() });
    add(rows.get(name).sum, row);
  }
  const sorted = [...rows.values()].sort((one, other) => other.waiting - one.waiting || other.running - one.running || (other.sum.cost ?? 0) - (one.sum.cost ?? 0) || (one.project < other.project ? -1 : 1));
  const none = phase === "ready" && sorted.length === 0;
  show(table, phase === "ready" && sorted.length > 0);
  show(empty, none);
  show(waitForAll, phase === "loading");
  show(failed, phase === "error");
  text(failed, `The projects cannot be read: ${problem}.`);
  reconcile(body, sorted, ({ project }) => project, make, change);
  keepOneStop(body);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  for (const [name, title] of COLUMNS.slice(1)) cells[name].dataset.label = title;
  const p = (node.parts = { ...cells, link: h("a", { class: "project-name" }), time: timeNode(null, "age") });
  cells.name.append(p.link);
  cells.oldest.append(p.time);
  return node;
}

/** @param {any} node @param {any} row */
function change(node, { project, running: runs, waiting: waits, oldest, sum, shares = [], weight = 1, agents = 0, calls = 0 }) {
  const p = node.parts;
  text(p.link, project);
  attr(p.link, "href", projectAddress(project));
  const put = (cell, value) => {
    text(cell, value || "–");
    attr(cell, "data-none", value ? null : "true"); // left out on a phone
  };
  put(p.running, runs ? count(runs) : "");
  attr(p.running, "title", runs ? [agents && some(agents, "agent"), calls && some(calls, "call")].filter(Boolean).join(", ") : null);
  put(p.share, [shareText(shares), weight === 1 ? "" : `weight ${weight}`].filter(Boolean).join(", "));
  attr(p.share, "title", shares.length ? shareLines(shares).join("\n") : null);
  attr(p.share, "data-tone", waits && isShort(shares) ? "queue" : null);
  put(p.waiting, waits ? count(waits) : "");
  attr(p.waiting, "data-tone", waits ? "queue" : null);
  setTime(p.time, oldest);
  attr(p.oldest, "data-none", oldest ? null : "true");
  put(p.tokens, sum.tokens ? compact(sum.tokens) : "");
  put(p.cost, sum.calls ? costText(sum) : "");
}

function drawOne(name) {
  const mine = store.leases.filter((lease) => lease.project === name);
  const known = store.scope.of === scopeKey();
  const scope = known ? store.scope : { tickets: [], waiting: 0, jobs: [], usage: null };
  const told = (words) => (known ? words : "…");
  const sum = scope.usage ? add(nothingUsed(), scope.usage.total) : nothingUsed();
  running.draw(mine);
  waiting.draw(scope.tickets);
  jobs.draw(scope.jobs);
  show(more, scope.waiting > scope.tickets.length && known);
  text(more, `Show all ${count(scope.waiting)} in the queue`);
  const numbers = { running: mine.length, waiting: scope.waiting, jobs: scope.jobs.length };
  for (const part of parts) {
    text(part.number, numbers[part.name] ? count(numbers[part.name]) : "");
    show(part.none, numbers[part.name] === 0 && (known || part.name === "running"));
    show(part.loading, !known && part.name !== "running");
  }
  const rows = [["Running", count(mine.length), ""], ["Waiting", told(count(scope.waiting)), ""], ["Tokens, 24 h", told(compact(sum.tokens)), told(some(sum.calls, "call"))], ["Cost, 24 h", told(sum.calls ? costText(sum) : "$0"), ""]];
  reconcile(figures, rows, ([title]) => title, ([title]) => h("div", { class: "figure card" }, h("dt", { text: title }), h("dd", {}, h("span", { class: "figure-value" }), h("span", { class: "figure-note" }))), (node, [, value, note]) => {
    text(node.querySelector(".figure-value"), value);
    text(node.querySelector(".figure-note"), note);
  });
  const shares = store.projects.list.find(({ project }) => project === name)?.shares ?? [];
  show(shared, shares.length > 0);
  reconcile(shared, shares, ({ pool, kind }) => `${kind} ${pool}`, () => h("li", { class: "card" }, h("span", {})), (node, share) => text(node.children[0], shareLines([share])[0]));
  const own = store.budgets.list.filter((budget) => budget.name.startsWith(`project:${name} `));
  show(budgets, own.length > 0);
  reconcile(budgets, own, (budget) => budget.name, () => h("li", { class: "card" }, h("a", { href: address("budgets") }), h("span", {})), (node, budget) => {
    text(node.children[0], budget.name);
    attr(node, "data-state", standing(budget));
    text(node.children[1], `${figureOf(budget.used, budget.unit)} of ${amountOf(budget.amount, budget.unit)} used (${Math.floor(100 * shareOf(budget))} %)`);
  });
  if (links.dataset.name !== name) {
    links.dataset.name = name;
    links.replaceChildren(h("a", { href: address("usage", { by: "project", of: name, period: "7d" }), text: "Usage and runs" }), h("a", { href: eventsAddress(name), text: "Events" }));
  }
}
