// The start of the page: sets up every section, then keeps them up to date with the stream of events.
import { get } from "./api.js";
import { setUpBackoffs, tickBackoffs } from "./backoffs.js";
import * as banners from "./banners.js";
import { setUpBudgets } from "./budgets/page.js";
import { budgetsReader } from "./budgets/reading.js";
import { setUpChart } from "./chart.js";
import { tick } from "./clock.js";
import { remember, setUpEvents } from "./events.js";
import { setUpJobLinks } from "./job_details.js";
import { calmJobs, pokeJobs } from "./job_reading.js";
import { setUpJobs } from "./jobs.js";
import { setUpKeys } from "./keys.js";
import { setUpLeases } from "./leases.js";
import { setUpQueue } from "./queue.js";
import { setUpPages } from "./pages.js";
import { setUpPools } from "./pools.js";
import { calmly, poke, readNow } from "./refresh.js";
import { readSeries } from "./series.js";
import { onChange, store, update } from "./store.js";
import { setUpSession } from "./sign_in.js";
import { Stream } from "./stream.js";
import { drawPlace, setUpSummary } from "./summary.js";
import { setUpTheme } from "./theme.js";
import { setUpUsage } from "./usage/page.js";
import { runsReader, usageReader } from "./usage/reading.js";
import { setUpWelcome } from "./welcome.js";

const readers = [usageReader, runsReader, budgetsReader];
/** Something changed: read what is on the screen. */
function pokeAll() {
  poke();
  pokeJobs();
  for (const reader of readers) reader.poke();
}

const stream = new Stream({
  onEvent(event) {
    update({ events: remember(store.events, event) });
    pokeAll();
  },
  onNotice(type, data) {
    if (type === "trouble") update({ trouble: data.text });
    if (type !== "stopping" && type !== "behind") poke();
  },
  onState(state, retryAt) {
    const before = store.connection;
    const lostAt = state === "live" ? 0 : before.state === "live" ? Date.now() : before.lostAt;
    update({ connection: { state, retryAt, lostAt } });
    if (state === "live") pokeAll();
  },
});

for (const setUp of [setUpTheme, setUpKeys, setUpPages, setUpSummary, setUpChart, setUpPools, setUpQueue, setUpJobs, setUpJobLinks, setUpLeases, setUpBackoffs, setUpEvents, setUpUsage, setUpBudgets, setUpWelcome]) {
  setUp();
}
banners.setUpBanners(() => stream.retryNow());
tick(() => {
  tickBackoffs();
  if (store.connection.state === "live") {
    calmly();
    calmJobs();
    for (const reader of readers) reader.calm();
  } else {
    banners.draw();
    drawPlace();
  }
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  stream.retryNow();
  pokeAll();
  readSeries(true);
});

let started = false;
onChange(["phase"], start);

/** Once the state has been read: the latest events, then the stream. */
async function start() {
  if (started || store.phase !== "ready") return;
  started = true;
  const { seq } = store.session;
  stream.start(seq);
  readSeries(true);
  try {
    const { events } = await get(`/v1/history?since=${Math.max(0, seq - 60)}&limit=60`);
    update({ events: events.reduce(remember, store.events) });
  } catch {
    // The list fills as events arrive.
  }
}

setUpSession().then(readNow);
