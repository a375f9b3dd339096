// Signing in with the code of a one-time link, which is in the fragment of the address; and signing out. js/access signs in with a key.
import { send } from "../state/api.js";
import { byId, show, text } from "../base/dom.js";
import { readNow } from "../state/refresh.js";
import * as session from "../state/session.js";
import { mayChange, onChange, store } from "../state/store.js";
import { say } from "../base/toasts.js";

/** Sign in if there is a code, or another tab is signed in. */
export async function setUpSession() {
  const button = byId("sign-out");
  button.addEventListener("click", signOut);
  const draw = () => {
    const { key, user, role } = store.session ?? {};
    show(button, session.hasSecret() && (mayChange() || Boolean(key)));
    text(byId("signed-in"), key ? `Signed in with the key ${key}, ${role}` : user ? `Signed in as ${user}, ${role}` : "");
    show(byId("metrics-link"), store.session?.loopback !== false); // elsewhere it needs a header that no link can send
  };
  onChange(["session"], draw);
  addEventListener("hashchange", async () => {
    if (await redeem()) readNow();
  });
  if (!(await redeem())) await session.ask();
  session.onSession(() => {
    draw();
    readNow();
  });
}

/** Exchange the code in the address for a session. @returns {Promise<boolean>}  whether there was one */
async function redeem() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return false;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    const { secret } = await send("POST", "/v1/session", { code });
    session.begin(secret);
  } catch (error) {
    say(`Not signed in: ${error.message}.`, { bad: true });
  }
  return true;
}

async function signOut() {
  try {
    await send("DELETE", "/v1/session");
  } catch (error) {
    if (error.status !== 401) {
      say(`Not signed out: ${error.message}.`, { bad: true });
      return;
    }
  }
  session.end();
  say("Signed out.");
}
