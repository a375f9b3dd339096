// The Keys page, for admins: what each access key may do, has at the gate, used and has left.
import { setTime, timeNode } from "../base/clock.js";
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, isShort, shareLines, shareText } from "../base/format.js";
import { icon } from "../base/icons.js";
import { amountOf, costText, figureOf } from "../base/money.js";
import { keepOneStop } from "../base/roving.js";
import { makeRow, makeTable, nothing } from "../base/table.js";
import { shareOf, standing } from "../budgets/reading.js";
import { address } from "../frame/pages.js";
import { mayManageKeys, onChange, store } from "../state/store.js";
import { add, nothingUsed } from "../usage/sums.js";
import { newKey, removeKey, rotateKey } from "./dialogs.js";
import { keysReader } from "./reading.js";

/** @type {[string, string][]} */
const COLUMNS = [["name", "Key"], ["running", "Running"], ["waiting", "Waiting"], ["share", "Share"], ["cost", "Cost, 24 h"], ["limits", "Budgets"], ["expires", "Expires"], ["acts", "(Actions)"]];

const { table, body } = makeTable("Access keys", COLUMNS);
const empty = nothing("No access keys", "A key lets a person or a program use this service with a role, a project and limits of its own. On the command line: `fleetgate key create NAME --project PROJECT`.");
const loading = h("p", { class: "nothing", text: "Loading keys…" });
const failed = h("p", { class: "nothing", role: "alert" });
const refused = h("p", { class: "nothing", role: "note" });
const create = h("button", { type: "button", class: "button", text: "New key…", on: { click: () => newKey() } });

export function setUpAccessKeys() {
  byId("key-tools").append(create);
  byId("keys-body").append(h("div", { class: "card list key-list" }, table, empty, loading, failed, refused));
  onChange(["route", "accessKeys", "session"], draw);
  onChange(["route", "phase", "session"], () => keysReader.poke());
}

function draw() {
  show(byId("keys-link"), mayManageKeys());
  if (store.route.page !== "keys") return;
  const { phase, problem, list, usage } = store.accessKeys;
  const may = mayManageKeys();
  const used = new Map(usage.map((row) => [row.key, row]));
  show(create, may);
  show(refused, !may);
  text(refused, `Access keys need the role admin; you have the role ${store.session?.role ?? "viewer"}.`);
  show(table, may && phase === "ready" && list.length > 0);
  show(empty, may && phase === "ready" && list.length === 0);
  show(loading, may && phase === "loading");
  show(failed, may && phase === "error");
  text(failed, `The keys cannot be read: ${problem}.`);
  text(byId("keys-count"), may && list.length ? count(list.length) : "");
  reconcile(body, may ? list : [], ({ name }) => name, make, (node, key) => change(node, key, used.get(key.name)));
  keepOneStop(body);
}

function make() {
  const { node, cells } = makeRow(COLUMNS.map(([name]) => name));
  for (const [name, title] of COLUMNS.slice(1, -1)) cells[name].dataset.label = title;
  const button = (title, name, act) => h("button", { type: "button", class: "icon-button", title, on: { click: () => act(node.key) } }, icon(name));
  const p = (node.parts = {
    ...cells,
    link: h("a", { class: "project-name" }), role: h("span", { class: "kind" }), rights: h("span", { class: "key-rights" }),
    budgets: h("ul", { class: "key-budgets" }), ends: h("span", {}), time: timeNode(null, "left"),
    rotate: button("Rotate", "restore", rotateKey), remove: button("Remove", "cancel", removeKey),
  });
  cells.name.append(h("span", { class: "key-name" }, p.link, p.role), p.rights);
  cells.limits.append(p.budgets);
  cells.expires.append(p.ends, p.time);
  cells.acts.append(h("div", { class: "key-actions" }, p.rotate, p.remove));
  return node;
}

function change(node, key, row) {
  node.key = key;
  const p = node.parts;
  const sum = row ? add(nothingUsed(), row) : nothingUsed();
  text(p.link, key.name);
  attr(p.link, "href", address("usage", { by: "key", of: key.name }));
  text(p.role, key.role);
  text(p.rights, rightsOf(key));
  const put = (cell, value) => {
    text(cell, value || "–");
    attr(cell, "data-none", value ? null : "true"); // left out on a phone
  };
  put(p.running, runningOf(key));
  put(p.waiting, key.waiting ? count(key.waiting) : "");
  attr(p.waiting, "data-tone", key.waiting ? "queue" : null);
  put(p.share, shareText(key.shares));
  attr(p.share, "title", key.shares.length ? shareLines(key.shares).join("\n") : null);
  attr(p.share, "data-tone", key.waiting && isShort(key.shares) ? "queue" : null);
  put(p.cost, sum.calls ? costText(sum) : "");
  attr(p.limits, "data-none", key.budgets.length ? null : "true");
  reconcile(p.budgets, key.budgets, (budget) => budget.name, () => h("li", {}), (item, budget) => {
    attr(item, "data-state", standing(budget));
    attr(item, "title", `${Math.floor(100 * shareOf(budget))} % used`);
    text(item, `${figureOf(budget.used, budget.unit)} of ${amountOf(budget.amount, budget.unit)} per ${budget.per}`);
  });
  attr(p.expires, "data-none", key.expires_at ? null : "true");
  text(p.ends, key.expired ? "expired" : key.expires_at ? "in " : "never");
  attr(p.expires, "data-tone", key.expired ? "bad" : null);
  setTime(p.time, key.expired ? null : key.expires_at);
  attr(p.rotate, "aria-label", `Rotate ${key.name}`);
  attr(p.remove, "aria-label", `Remove ${key.name}`);
}

function rightsOf(key) {
  const parts = [key.project ? `for ${key.project}` : "", key.work_class ?? ""];
  if (key.max_priority !== null) parts.push(`priority up to ${key.max_priority}`);
  return parts.filter(Boolean).join(" · ");
}

/** How many run, and of how many: `1 of 2`, or `1 of 2 agents, 4 calls` where the caps differ. */
function runningOf({ running, caps }) {
  const { agents, requests } = caps;
  if (agents === undefined && requests === undefined) return running ? count(running) : "";
  if (agents === requests) return `${count(running)} of ${count(agents)}`;
  const parts = [agents === undefined ? "" : `${count(agents)} agents`, requests === undefined ? "" : `${count(requests)} calls`];
  return `${count(running)} of ${parts.filter(Boolean).join(", ")}`;
}
