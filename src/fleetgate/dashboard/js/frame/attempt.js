// Runs the actions of the page: a refusal is shown in the words of the service, and the state is read again.
import { some } from "../base/format.js";
import { say } from "../base/toasts.js";
import { readNow } from "../state/refresh.js";
import { store, update } from "../state/store.js";

/** Run an action and read the state again; a refusal is shown in the words of the service. @param {() => Promise<void>} action */
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (error.status === 401) update({ session: { ...store.session, may_change: false } });
    say(`Not done: ${error.message}.`, { bad: true });
  }
  await readNow();
}

/** How many agents started because of it, as a sentence; "" for none. */
export const started = (answer) => (answer?.entered ? ` ${some(answer.entered, "agent")} started.` : "");
