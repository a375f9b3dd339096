// The start of the page: sets up every section, then keeps them up to date with the stream of events.
import { get } from "./state/api.js";
import { setUpBackoffs, tickBackoffs } from "./fleet/backoffs.js";
import * as banners from "./frame/banners.js";
import { setUpBudgets } from "./budgets/page.js";
import { budgetsReader } from "./budgets/reading.js";
import { setUpChart } from "./fleet/chart.js";
import { tick } from "./base/clock.js";
import { remember, setUpEvents } from "./events/list.js";
import { setUpJobLinks } from "./jobs/details.js";
import { calmJobs, pokeJobs } from "./jobs/reading.js";
import { setUpJobs } from "./jobs/list.js";
import { setUpKeys } from "./frame/keys.js";
import { setUpLeases } from "./fleet/leases.js";
import { setUpQueue } from "./fleet/queue.js";
import { setUpPages } from "./frame/pages.js";
import { setUpPools } from "./pools/list.js";
import { calmly, poke, readNow } from "./state/refresh.js";
import { readSeries } from "./state/series.js";
import { onChange, store, update } from "./state/store.js";
import { setUpSession } from "./frame/sign_in.js";
import { Stream } from "./state/stream.js";
import { drawPlace, setUpSummary } from "./fleet/summary.js";
import { setUpTheme } from "./frame/theme.js";
import { setUpUsage } from "./usage/page.js";
import { runsReader, usageReader } from "./usage/reading.js";
import { setUpWelcome } from "./frame/welcome.js";

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
