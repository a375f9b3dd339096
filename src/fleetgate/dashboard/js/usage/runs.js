// The runs of one row of the usage: what each of them used, the most expensive first.
import { h, reconcile, show, text } from "../base/dom.js";
import { count, some } from "../base/format.js";
import { makePager } from "../base/pager.js";
import { keepOneStop } from "../base/roving.js";
import { store } from "../state/store.js";
import { makeTable, nothing } from "../base/table.js";
import { runsKey, runsReader, usageView } from "./reading.js";
import { changeUsageRow, makeUsageRow, NUMBERS } from "./rows.js";
import { sumsBy } from "./sums.js";

const PAGE = 25;
let page = 0;
let shownFor = "";

const { table, body } = makeTable("Runs", [["name", "Run"], ...NUMBERS]);
const pager = makePager("the runs", (to) => {
  page = to;
  drawRuns(usageView());
});
const empty = nothing("No runs in the history", "Sums are kept for longer than the history, which is where runs are read from.");
const partly = h("p", { class: "list-note", hidden: true });
const loading = h("p", { class: "nothing", text: "Loading runs…" });
const failed = h("div", { class: "nothing", role: "alert", hidden: true }, h("p", { class: "nothing-title", text: "The runs cannot be read" }), h("p", {}),
  h("button", { type: "button", class: "button small", text: "Try again", on: { click: () => runsReader.readNow() } }));
const heading = h("h3", { class: "usage-runs-title" });

export const setUpRuns = () => h("section", { class: "card list usage-list", "aria-label": "Runs" }, heading, table, empty, partly, loading, failed, pager.node);

export function drawRuns(view) {
  const { phase, problem, list, left } = store.runs;
  const key = runsKey(view);
  if (shownFor !== key) page = 0;
  shownFor = key;
  const current = store.runs.view === key;
  const known = current && phase === "ready" ? rowsOf(list) : [];
  page = Math.max(0, Math.min(page, Math.ceil(known.length / PAGE) - 1));
  text(heading, current && phase === "ready" ? some(known.filter(({ name }) => name).length, "run") : "Runs");
  show(partly, current && left > 0);
  text(partly, `There are too many runs for one list: ${count(left)} of the smallest are missing. Choose a shorter period.`);
  show(table, known.length > 0);
  show(empty, current && phase === "ready" && known.length === 0);
  show(loading, !current || phase === "loading");
  show(failed, current && phase === "error");
  text(failed.children[1], `The service reports: ${problem}.`);
  reconcile(body, known.slice(page * PAGE, (page + 1) * PAGE), ({ name }) => name, () => makeUsageRow(null), (node, row) => changeUsageRow(node, row, null));
  keepOneStop(body);
  pager.draw(page, PAGE, known.length);
}

/** One row for each run, whatever number of models it used. */
function rowsOf(list) {
  const of = new Map();
  for (const row of list) {
    if (of.has(row.run)) of.get(row.run).push(row);
    else of.set(row.run, [row]);
  }
  const sums = sumsBy(list, (row) => row.run);
  const rows = [...sums].map(([name, sum]) => {
    const parts = of.get(name);
    const distinct = (field) => [...new Set(parts.map((row) => row[field]).filter(Boolean))].join(", ");
    const lease = store.leases.find(({ id }) => id === name);
    return { name, title: name ? lease?.command || name : "calls outside runs", sum, under: !name ? "of programs with their own requests" : [lease ? `${name} running` : "", distinct("model"), distinct("project"), distinct("host")].filter(Boolean).join(" · ") };
  });
  return rows.sort((one, other) => Number(!one.name) - Number(!other.name) || (other.sum.cost ?? -1) - (one.sum.cost ?? -1) || other.sum.tokens - one.sum.tokens || (one.name < other.name ? 1 : -1));
}
