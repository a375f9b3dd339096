// Searches the history: one page of events at a time, newest first.
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { store, update } from "../state/store.js";

const PAGE = 60;
// What happens all the time and says little; it is found when its type is chosen.
export const QUIET = new Set(["usage_asked", "usage_answered", "renewed", "claimed", "observed", "asked", "settled", "hour_closed", "rates_observed"]);

/** What the address asks for, as a key. */
export const searchKey = ({ query } = store.route) => JSON.stringify([query.text ?? "", query.type ?? "", query.since ?? "", query.until ?? ""]);

/** A time from the address: an age, or a time of this browser's zone. */
const moment = (text) => (text.includes("T") ? new Date(text).toISOString() : text);

function ask(before) {
  const { text = "", type = "", since = "", until = "" } = store.route.query;
  const types = type || store.found.types.filter((each) => !QUIET.has(each)).join(",");
  const given = { text, types, since: since && moment(since), until: until && moment(until), before: before === null ? "" : String(before), limit: String(PAGE) };
  return get(`/v1/history/search?${new URLSearchParams(Object.entries(given).filter(([, value]) => value))}`);
}

async function read() {
  const of = searchKey();
  try {
    if (!store.found.types.length) update({ found: { ...store.found, types: (await get("/v1/history/search?limit=1")).types } });
    const answer = await ask(null);
    if (of !== searchKey()) return void searchReader.poke();
    const kept = store.found.of === of ? store.found.events.filter((event) => event.seq < (answer.events.at(-1)?.seq ?? 0)) : [];
    const next = kept.length ? store.found.next : answer.next_before;
    update({ found: { phase: "ready", problem: "", of, events: [...answer.events, ...kept], next, searched: answer.searched, types: answer.types } });
  } catch (error) {
    if (of === searchKey()) update({ found: { ...store.found, phase: "error", problem: error.message, of, events: [], next: null } });
  }
}

/** The next part, further back. */
export async function readOlder() {
  const of = searchKey();
  try {
    const answer = await ask(store.found.next);
    if (of !== searchKey()) return;
    update({ found: { ...store.found, events: [...store.found.events, ...answer.events], next: answer.next_before, searched: store.found.searched + answer.searched } });
  } catch (error) {
    update({ found: { ...store.found, phase: "error", problem: error.message } });
  }
}

export const searchReader = makeReader(read, {
  wanted: () => store.phase === "ready" && store.route.page === "events" && !document.hidden, soonestMs: 1_000, calmMs: 15_000,
});
