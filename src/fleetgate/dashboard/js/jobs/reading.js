// Reads the list of jobs: one page at a time, after an event, as refresh.js does for the rest.
import { get } from "../state/api.js";
import { store, update } from "../state/store.js";

export const PAGE = 12;
export const ENDED = ["succeeded", "failed", "cancelled", "expired", "lost"];
const SOONEST_MS = 400;
const CALM_MS = 5_000; // positions and estimates change without an event of the job's own

/** What can be listed: name, title, states. @type {[string, string, string[]][]} */
export const CHOICES = [
  ["all", "All", []], ["running", "Running", ["running"]], ["waiting", "Waiting", ["queued", "held"]], ["ended", "Finished", ENDED],
];

let timer = 0;
let busy = false;
let again = false;
let ended = 0;
let cost = 0;

/** Something happened: read soon. */
export function pokeJobs() {
  if (busy) again = true;
  else if (!timer) timer = setTimeout(readJobs, Math.max(40, ended + Math.max(SOONEST_MS, cost * 4) - performance.now()));
}

/** Called every second. */
export function calmJobs() {
  const moving = (store.jobs.counts.queued ?? 0) + (store.jobs.counts.held ?? 0) > 0;
  if (store.jobs.phase === "error" || (moving && performance.now() - ended > Math.max(CALM_MS, cost * 20))) pokeJobs();
}

export async function readJobs() {
  clearTimeout(timer);
  timer = 0;
  if (busy) {
    again = true;
    return;
  }
  if (document.hidden && store.jobs.phase === "ready") return;
  busy = true;
  again = false;
  const started = performance.now();
  const view = store.jobsView;
  try {
    const states = CHOICES.find(([name]) => name === view.choice)[2];
    const query = new URLSearchParams({ all: "true", limit: String(PAGE), offset: String(view.page * PAGE) });
    if (states.length) query.set("state", states.join(","));
    const { jobs, total, counts } = await get(`/v1/jobs?${query}`);
    const last = Math.max(0, Math.ceil(total / PAGE) - 1);
    if (view !== store.jobsView) again = true;
    else if (view.page > last) {
      update({ jobsView: { ...view, page: last } });
      again = true;
    } else update({ jobs: { phase: "ready", problem: "", list: jobs, total, counts } });
  } catch (error) {
    if (error.status !== 0 || store.jobs.phase !== "ready") update({ jobs: { ...store.jobs, phase: "error", problem: error.message } });
  } finally {
    busy = false;
    ended = performance.now();
    cost = ended - started;
    if (again) pokeJobs();
  }
}
