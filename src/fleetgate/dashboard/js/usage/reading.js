// Reads the usage that the page shows: sums over time by one dimension, and the runs of one row of them.
import { get } from "../api.js";
import { makeReader } from "../reader.js";
import { store, update } from "../store.js";
import { PERIODS } from "./sums.js";

/** What usage can be divided by: name, title, and the title of its column. @type {[string, string, string][]} */
export const DIMENSIONS = [
  ["project", "By project", "Project"], ["model", "By model", "Model"], ["account", "By account", "Account"],
  ["host", "By host", "Host"], ["source", "By source", "Source"],
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

async function readUsage() {
  const view = usageView();
  const key = usageKey(view);
  const known = store.usage.view === key && store.usage.answer !== null;
  try {
    const query = new URLSearchParams({ by: `${view.period.unit},${view.by}`, since: view.period.name });
    const answer = await get(`/v1/usage?${query}`);
    update({ usage: { phase: "ready", problem: "", view: key, answer } });
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
    const by = [...new Set([...RUN_FIELDS, view.by])];
    const { rows } = await get(`/v1/usage?${new URLSearchParams({ by: by.join(","), since: view.period.name })}`);
    update({ runs: { phase: "ready", problem: "", view: key, list: rows.filter((row) => row[view.by] === view.of) } });
  } catch (error) {
    if (!known || error.status !== 0) update({ runs: { phase: "error", problem: error.message, view: key, list: [] } });
  }
  if (runsKey(usageView()) !== key) runsReader.poke();
}

const shown = () => store.phase === "ready" && store.route.page === "usage" && !document.hidden;

export const usageReader = makeReader(readUsage, { wanted: shown, soonestMs: SOONEST_MS, calmMs: CALM_MS });
export const runsReader = makeReader(readRuns, {
  wanted: () => shown() && store.route.query.of !== undefined, soonestMs: SOONEST_MS, calmMs: CALM_MS,
});
