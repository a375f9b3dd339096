// A reader of one answer of the service: after an event, not too often, never twice at once, and less often when answers are slow.

/**
 * @param {() => Promise<void>} read   reads and updates the store; throws nothing
 * @param {Object} options
 * @param {() => boolean} options.wanted   whether the answer is on the screen
 * @param {number} options.soonestMs   the shortest time between two reads
 * @param {number} options.calmMs   how often to read without an event
 */
export function makeReader(read, { wanted, soonestMs, calmMs }) {
  let timer = 0;
  let busy = false;
  let again = false;
  let ended = -Infinity;
  let cost = 0;

  /** Something changed: read soon. */
  function poke() {
    if (!wanted()) return;
    if (busy) again = true;
    else if (!timer) timer = setTimeout(readNow, Math.max(40, ended + Math.max(soonestMs, cost * 4) - performance.now()));
  }

  async function readNow() {
    clearTimeout(timer);
    timer = 0;
    if (busy) {
      again = true;
      return;
    }
    if (!wanted()) return;
    busy = true;
    again = false;
    const started = performance.now();
    try {
      await read();
    } finally {
      busy = false;
      ended = performance.now();
      cost = ended - started;
      if (again) poke();
    }
  }

  /** Called every second. */
  function calm() {
    if (performance.now() - ended > Math.max(calmMs, cost * 20)) poke();
  }

  return { poke, readNow, calm };
}
