// The Usage page: figures, a chart over time, and a table by the chosen dimension; a row opens its runs.
import { attr, byId, h, reconcile, show, text } from "../base/dom.js";
import { count, exact } from "../base/format.js";
import { compact, costText, exactly } from "../base/money.js";
import { makePager } from "../base/pager.js";
import { address, goTo } from "../frame/pages.js";
import { keepOneStop } from "../base/roving.js";
import { onChange, store } from "../state/store.js";
import { makeTable, nothing } from "../base/table.js";
import { makeUsageChart } from "./chart.js";
import { DIMENSIONS, runsReader, usageKey, usageReader, usageView } from "./reading.js";
import { drawRuns, setUpRuns } from "./runs.js";
import { add, nothingUsed, PERIODS, rowOf, sumsBy } from "./sums.js";
import { makeUsageRow, changeUsageRow, NUMBERS, totalRow } from "./rows.js";

const LARGEST = 7; // rows with a colour of their own; the chart shows the rest as one

const PAGE = 50;

let page = 0;
let pageOf = "";
const chart = makeUsageChart();
const pager = makePager("the table", (to) => {
  page = to;
  draw();
});
const figures = h("dl", { class: "usage-figures" });
const trail = h("p", { class: "usage-trail", hidden: true });
const { table, body } = makeTable("Usage", [["name", "Project"], ...NUMBERS]);
const foot = totalRow();
const times = makeTable("Usage over time", [["name", "Time"], ...NUMBERS]);
const timesBox = h("details", { class: "usage-times card" }, h("summary", { text: "The chart as a table" }), times.table);
const empty = nothing("No usage in this period",
  "Usage comes from agents started with `fleetgate run`, and from calls through the proxy: `fleetgate env claude` prints how to send an agent through it.");
const loading = h("p", { class: "nothing", text: "Loading usage…" });
const failed = h("div", { class: "nothing", role: "alert", hidden: true }, h("p", { class: "nothing-title", text: "The usage cannot be read" }), h("p", {}),
  h("button", { type: "button", class: "button small", text: "Try again", on: { click: () => usageReader.readNow() } }));
const chartCard = h("div", { class: "card chart-card" }, chart.node);
const tableCard = h("div", { class: "card list usage-list" }, table, pager.node);
const runs = setUpRuns();
const all = h("div", { class: "usage-parts" }, figures, trail, chartCard, tableCard, runs, timesBox);

export function setUpUsage() {
  table.append(foot);
  byId("usage-body").append(all, h("div", { class: "card", id: "usage-nothing" }, empty, loading, failed));
  choices("usage-measure", [["cost", "Cost"], ["tokens", "Tokens"]], "show", (view) => view.measure);
  choices("usage-period", PERIODS.map(({ name, title }) => [name, title]), "period", (view) => view.period.name);
  const by = /** @type {HTMLSelectElement} */ (byId("usage-by"));
  by.append(...DIMENSIONS.map(([name, title]) => h("option", { value: name, text: title })));
  by.addEventListener("change", () => choose({ by: by.value, of: undefined }));
  timesBox.addEventListener("toggle", drawTimes);
  onChange(["route"], () => {
    by.value = usageView().by;
    usageReader.readNow();
    runsReader.readNow();
  });
  onChange(["phase"], () => {
    usageReader.poke();
    runsReader.poke();
  });
  onChange(["route", "usage", "runs"], draw);
}

/** Another view; what is usual is not in the address. */
function choose(change) {
  const query = { ...store.route.query, ...change };
  goTo("usage", { by: query.by, period: query.period, show: query.show, of: query.of }, { replace: true });
}

function choices(id, items, name, chosen) {
  for (const [value, title] of items) {
    const button = h("button", { type: "button", text: title, on: { click: () => choose({ [name]: value }) } });
    byId(id).append(button);
    onChange(["route"], () => attr(button, "aria-pressed", String(chosen(usageView()) === value)));
    attr(button, "aria-pressed", String(chosen(usageView()) === value));
  }
}

/** The name of a row: of what names nothing, too. */
export function titleOf(name, by) {
  if (name) return by === "source" ? { response: "provider's response", partial: "response that broke off", record: "agent's record", estimate: "estimate" }[name] ?? name : name;
  return { project: "no project", model: "no model", account: "no account", host: "no host", key: "no key" }[by] ?? "not known";
}

function draw() {
  if (store.route.page !== "usage") return;
  const view = usageView();
  const { phase, problem, answer } = store.usage;
  const current = store.usage.view === usageKey(view);
  const ready = current && phase === "ready";
  show(all, ready && answer.whole.length > 0);
  show(byId("usage-nothing"), !ready || answer.whole.length === 0);
  show(empty, ready && answer.whole.length === 0);
  show(loading, !current || phase === "loading");
  show(failed, current && phase === "error");
  text(failed.children[1], `The service reports: ${problem}.`);
  if (!ready) return;
  const sums = [...sumsBy(answer.whole, (row) => row[view.by])].map(([name, sum]) => ({ name, sum, title: titleOf(name, view.by) }));
  const size = ({ sum }) => (view.measure === "cost" ? [sum.cost ?? -1, sum.tokens] : [sum.tokens, sum.cost ?? -1]);
  sums.sort((one, other) => size(other)[0] - size(one)[0] || size(other)[1] - size(one)[1] || (one.title < other.title ? -1 : 1));
  const parts = partsOf(sums);
  const chosen = view.of === undefined ? null : sums.find(({ name }) => name === view.of) ?? { name: view.of, sum: nothingUsed(), title: titleOf(view.of, view.by) };
  drawFigures(chosen ? chosen.sum : add(nothingUsed(), answer.total), answer);
  drawTrail(view, chosen);
  chart.change(answer, view, chosen ? [{ ...(parts.find((part) => part.name === chosen.name) ?? parts.at(-1) ?? { color: 1 }), ...chosen, rest: false }] : parts);
  show(chartCard, !chosen || answer.divided);
  show(tableCard, !chosen);
  show(runs, Boolean(chosen));
  if (chosen) drawRuns(view, chosen);
  else drawTable(view, sums, parts, answer);
  drawTimes();
}

/** The largest with a colour each, and the rest as one. */
function partsOf(sums) {
  const alone = sums.length <= LARGEST + 1 ? sums : sums.slice(0, LARGEST);
  const parts = alone.map((each, place) => ({ ...each, color: place + 1, rest: false }));
  const others = sums.slice(alone.length);
  if (others.length) {
    const sum = nothingUsed();
    for (const each of others) add(sum, rowOf(each.sum));
    parts.push({ name: Symbol("rest"), title: `${count(others.length)} others`, sum, color: 0, rest: true });
  }
  return parts;
}

const exactOf = (n) => (n < 1000 ? "" : count(n));

function drawFigures(sum, answer) {
  const cached = sum.cache_read + sum.cache_write;
  const prompt = sum.input + cached;
  const share = cached ? `${Math.round((100 * sum.cache_read) / prompt)} % from the cache` : "";
  const items = [
    ["Cost", costText(sum), !sum.complete ? "part of the cost is not known" : sum.cost === null || exactly(sum.cost / 1e6) === costText(sum) ? "" : exactly(sum.cost / 1e6)],
    ["Input tokens", compact(prompt), [exactOf(prompt), share].filter(Boolean).join(", ")],
    ["Output tokens", compact(sum.output), exactOf(sum.output)],
    ["Calls", compact(sum.calls), [exactOf(sum.calls), sum.estimated ? `${count(sum.estimated)} estimated` : ""].filter(Boolean).join(", ")],
  ];
  reconcile(figures, items, ([name]) => name, ([name]) => h("div", { class: "figure card" }, h("dt", { text: name }), h("dd", {}, h("span", { class: "figure-value" }), h("span", { class: "figure-note" }))),
    (node, [, value, note]) => {
      text(node.children[1].children[0], value);
      text(node.children[1].children[1], note);
    });
  attr(figures, "title", `${exact(answer.since)} to ${exact(answer.until)}`);
}

function drawTrail(view, chosen) {
  show(trail, Boolean(chosen));
  if (!chosen) return;
  const { of, ...rest } = store.route.query;
  const title = DIMENSIONS.find(([name]) => name === view.by)?.[2] ?? view.by;
  const key = JSON.stringify([rest, chosen.title]);
  if (trail.dataset.key === key) return;
  trail.dataset.key = key;
  trail.replaceChildren(h("a", { href: address("usage", rest), text: `All ${view.by}s` }), h("span", { "aria-hidden": "true", text: "›" }), h("span", { class: "trail-name", text: `${title} ${chosen.title}` }));
}

function drawTable(view, sums, parts, answer) {
  const colors = new Map(parts.map((part) => [part.name, part.color]));
  if (pageOf !== usageKey(view)) page = 0;
  pageOf = usageKey(view);
  page = Math.max(0, Math.min(page, Math.ceil(sums.length / PAGE) - 1));
  pager.draw(page, PAGE, sums.length);
  text(table.querySelector("th.name"), DIMENSIONS.find(([name]) => name === view.by)?.[2] ?? "");
  reconcile(body, sums.slice(page * PAGE, (page + 1) * PAGE), ({ name }) => `${view.by} ${name}`, () => makeUsageRow((name) => goTo("usage", { ...store.route.query, of: name })),
    (node, each) => changeUsageRow(node, each, colors.get(each.name) ?? 0, `Show the runs of ${each.title}`));
  keepOneStop(body);
  changeUsageRow(foot.firstElementChild, { name: "", title: "Total", sum: add(nothingUsed(), answer.total) }, null);
}

/** The bars as rows, for those who do not see them: the newest first. */
function drawTimes() {
  if (!timesBox.open || store.usage.phase !== "ready") return;
  reconcile(times.body, chart.bars().reverse(), ({ time }) => time, () => makeUsageRow(null), (node, { time, sum }) => changeUsageRow(node, { name: time, title: time, sum }, null));
  keepOneStop(times.body);
}
