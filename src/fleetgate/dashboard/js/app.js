// The start of the page: sets up every section, then keeps them up to date with the stream of events.
import { setUpAccessKeys } from "./access/page.js";
import { keysReader } from "./access/reading.js";
import { setUpAccounts } from "./accounts/page.js";
import { accountsReader } from "./accounts/reading.js";
import { tick } from "./base/clock.js";
import { attr } from "./base/dom.js";
import { setUpBudgets } from "./budgets/page.js";
import { budgetsReader } from "./budgets/reading.js";
import { remember, setUpEvents } from "./events/list.js";
import { setUpEventSearch } from "./events/page.js";
import { searchReader } from "./events/search.js";
import { setUpBackoffs, tickBackoffs } from "./fleet/backoffs.js";
import { setUpChart } from "./fleet/chart.js";
import { setUpLeases } from "./fleet/leases.js";
import { setUpPlans } from "./fleet/plans.js";
import { setUpQueue } from "./fleet/queue.js";
import { drawPlace, setUpSummary } from "./fleet/summary.js";
import * as banners from "./frame/banners.js";
import { setUpItems } from "./frame/items.js";
import { setUpKeys } from "./frame/keys.js";
import { setUpPages } from "./frame/pages.js";
import { setUpSession } from "./frame/sign_in.js";
import { setUpTheme } from "./frame/theme.js";
import { setUpTrouble } from "./frame/trouble.js";
import { setUpWelcome } from "./frame/welcome.js";
import { setUpJobs } from "./jobs/list.js";
import { calmJobs, pokeJobs } from "./jobs/reading.js";
import { setUpLimitCard } from "./limits/card.js";
import { limitReader } from "./limits/reading.js";
import { setUpPools } from "./pools/list.js";
import { setUpPoolPage } from "./pools/page.js";
import { setUpProjects } from "./projects/page.js";
import { projectsReader } from "./projects/reading.js";
import { get } from "./state/api.js";
import { calmly, poke, readNow } from "./state/refresh.js";
import { scopeReader } from "./state/scope.js";
import { readSeries } from "./state/series.js";
import { isOfProject, onChange, store, update } from "./state/store.js";
import { Stream } from "./state/stream.js";
import { setUpUsage } from "./usage/page.js";
import { runsReader, usageReader } from "./usage/reading.js";

const readers = [usageReader, runsReader, budgetsReader, scopeReader, accountsReader, projectsReader, searchReader, limitReader, keysReader];
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

const frame = [setUpTheme, setUpKeys, setUpPages, setUpItems, setUpTrouble, setUpWelcome];
const fleet = [setUpSummary, setUpChart, setUpPlans, setUpPools, setUpQueue, setUpJobs, setUpLeases, setUpBackoffs, setUpEvents];
const pages = [setUpPoolPage, setUpLimitCard, setUpAccounts, setUpProjects, setUpEventSearch, setUpUsage, setUpBudgets, setUpAccessKeys];
for (const setUp of [...frame, ...fleet, ...pages]) setUp();
banners.setUpBanners(() => (isOfProject() ? readNow() : stream.retryNow()));
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
  if (following) readSeries(true);
});

let following = false;
onChange(["phase", "session"], follow);

/** Once the state has been read: the latest events, then the stream. What one project may see is read again and again instead. */
async function follow() {
  if (store.phase !== "ready") return;
  attr(document.documentElement, "data-scope", isOfProject() ? "project" : null);
  if (isOfProject()) {
    stream.stop();
    if (following) update({ events: [], series: { samples: [], stepS: 5 } });
    following = false;
    return;
  }
  if (following) return;
  following = true;
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
