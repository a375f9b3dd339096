// The start of the page: sets up every section, then keeps them up to date with the stream of events.
import { get } from "./api.js";
import { setUpBackoffs, tickBackoffs } from "./backoffs.js";
import * as banners from "./banners.js";
import { setUpChart } from "./chart.js";
import { tick } from "./clock.js";
import { remember, setUpEvents } from "./events.js";
import { calmJobs, pokeJobs } from "./job_reading.js";
import { setUpJobs } from "./jobs.js";
import { setUpKeys } from "./keys.js";
import { setUpLeases } from "./leases.js";
import { setUpQueue } from "./queue.js";
import { setUpPools } from "./pools.js";
import { calmly, poke, readNow } from "./refresh.js";
import { readSeries } from "./series.js";
import { onChange, store, update } from "./store.js";
import { setUpSession } from "./sign_in.js";
import { Stream } from "./stream.js";
import { drawPlace, setUpSummary } from "./summary.js";
import { setUpTheme } from "./theme.js";
import { setUpWelcome } from "./welcome.js";

const stream = new Stream({
  onEvent(event) {
    update({ events: remember(store.events, event) });
    poke();
    pokeJobs();
  },
  onNotice(type, data) {
    if (type === "trouble") update({ trouble: data.text });
    if (type !== "stopping" && type !== "behind") poke();
  },
  onState(state, retryAt) {
    const before = store.connection;
    const lostAt = state === "live" ? 0 : before.state === "live" ? Date.now() : before.lostAt;
    update({ connection: { state, retryAt, lostAt } });
    if (state !== "live") return;
    poke();
    pokeJobs();
  },
});

for (const setUp of [setUpTheme, setUpKeys, setUpSummary, setUpChart, setUpPools, setUpQueue, setUpJobs, setUpLeases, setUpBackoffs, setUpEvents, setUpWelcome]) {
  setUp();
}
banners.setUpBanners(() => stream.retryNow());
tick(() => {
  tickBackoffs();
  if (store.connection.state === "live") {
    calmly();
    calmJobs();
  } else {
    banners.draw();
    drawPlace();
  }
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  stream.retryNow();
  poke();
  pokeJobs();
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
