// Reads the access keys, with what each used in the last day. Only an admin may.
import { get } from "../state/api.js";
import { makeReader } from "../state/reader.js";
import { mayManageKeys, store, update } from "../state/store.js";

async function read() {
  try {
    const [{ keys }, { rows }] = await Promise.all([get("/v1/keys"), get("/v1/usage?by=key&since=24h")]);
    update({ accessKeys: { phase: "ready", problem: "", list: keys, usage: rows } });
  } catch (error) {
    if (error.status !== 0 || store.accessKeys.phase !== "ready") update({ accessKeys: { ...store.accessKeys, phase: "error", problem: error.message } });
  }
}

export const keysReader = makeReader(read, {
  wanted: () => store.phase === "ready" && store.route.page === "keys" && mayManageKeys() && !document.hidden, soonestMs: 1_000, calmMs: 10_000,
});
