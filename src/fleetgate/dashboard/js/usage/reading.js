// Reads the usage that the page shows: sums over time by one dimension, and the runs of one row of them.
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { store, update } from "../state/store.js";
import { PERIODS } from "./sums.js";

/** What usage can be divided by: name, title, and the title of its column. @type {[string, string, string][]} */
export const DIMENSIONS = [
  ["project", "By project", "Project"], ["model", "By model", "Model"], ["account", "By account", "Account"],
  ["host", "By host", "Host"], ["key", "By access key", "Access key"], ["source", "By source", "Source"],
];
const RUN_FIELDS = ["run", "project", "model", "host"];
const SOONEST_MS = 2_000;
const CALM_MS = 30_000;

/** What the address asks for; what it names wrongly is replaced by what is usual. */
export function usageView() {
  const { by, period, show, of } = store.route.query;
  return {
    by: DIMENSIONS.some(([name]) => name === by) ? by : "project",
    period: PERIODS.find((each) => each.name === period) ?? PERIODS[0],
    measure: show === "tokens" ? "tokens" : "cost",
    of,
  };
}

/** Answers are kept by what was asked, so that an old one is not shown for a new question. */
export const usageKey = ({ by, period }) => `${by} ${period.name}`;
export const runsKey = ({ by, period, of }) => `${by} ${period.name} ${of}`;

/** Rows of usage; what names nothing has an empty name. `left`: how many rows were too many for one answer. */
async function ask(by, since, filter = {}) {
  const { rows, rows_left_out: left, ...rest } = await get(`/v1/usage?${new URLSearchParams({ by: by.join(","), since, ...filter })}`);
  for (const row of rows) for (const name of by) row[name] ??= "";
  return { ...rest, rows, left };
}

/** The answer of one view: `rows` over time for the chart, `whole` for the table. */
async function readView({ by, period }) {
  const answer = await ask([period.unit, by], period.name);
  if (!answer.left) return { ...answer, whole: answer.rows, divided: true };
  // Too many rows for one answer: the table is read by itself, and the bars are not divided.
  const [over, whole] = await Promise.all([ask([period.unit], period.name), ask([by], period.name)]);
  return { ...whole, rows: over.rows, whole: whole.rows, divided: false };
}

async function readUsage() {
  const view = usageView();
  const key = usageKey(view);
  const known = store.usage.view === key && store.usage.answer !== null;
  try {
    update({ usage: { phase: "ready", problem: "", view: key, answer: await readView(view) } });
  } catch (error) {
    if (!known || error.status !== 0) update({ usage: { phase: "error", problem: error.message, view: key, answer: null } });
  }
  if (usageKey(usageView()) !== key) usageReader.poke();
}

async function readRuns() {
  const view = usageView();
  const key = runsKey(view);
  const known = store.runs.view === key && store.runs.phase === "ready";
  try {
    const filter = view.of && ["project", "model"].includes(view.by) ? { [view.by]: view.of } : {};
    const { rows, left } = await ask([...new Set([...RUN_FIELDS, view.by])], view.period.name, filter);
    update({ runs: { phase: "ready", problem: "", view: key, list: rows.filter((row) => row[view.by] === view.of), left } });
  } catch (error) {
    if (!known || error.status !== 0) update({ runs: { phase: "error", problem: error.message, view: key, list: [], left: 0 } });
  }
  if (runsKey(usageView()) !== key) runsReader.poke();
}

const shown = () => store.phase === "ready" && store.route.page === "usage" && !document.hidden;

export const usageReader = makeReader(readUsage, { wanted: shown, soonestMs: SOONEST_MS, calmMs: CALM_MS });
export const runsReader = makeReader(readRuns, {
  wanted: () => shown() && store.route.query.of !== undefined, soonestMs: SOONEST_MS, calmMs: CALM_MS,
});
