// The stream of events, resumed where it broke off. It is read by hand, so that the status of a refusal, heartbeats and the
// time of the next attempt are known; the browser's own EventSource reports none of them.
import { sessionHeaders } from "./session.js";

const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 15_000];
const SILENCE_MS = 40_000; // the service speaks every 15 s

export class Stream {
  /**
   * @param {Object} hooks
   * @param {(event: any) => void} hooks.onEvent   an event of the log
   * @param {(type: string, data: any) => void} hooks.onNotice   a notice that is not in the log
   * @param {(state: "connecting" | "live" | "waiting", retryAt: number) => void} hooks.onState
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.seq = 0;
    this.failures = 0;
    this.timer = 0;
    this.controller = null;
    this.stopped = true;
  }

  /** Listen from after this sequence number. */
  start(seq) {
    this.seq = seq;
    this.stopped = false;
    this.connect();
  }

  /** Listen no longer. */
  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.controller?.abort();
  }

  /** Do not wait for the next attempt. */
  retryNow() {
    if (this.controller || this.stopped) return;
    clearTimeout(this.timer);
    this.connect();
  }

  async connect() {
    const controller = (this.controller = new AbortController());
    this.hooks.onState("connecting", 0);
    let watch = 0;
    const alive = () => {
      clearTimeout(watch);
      watch = setTimeout(() => controller.abort(), SILENCE_MS);
    };
    alive();
    try {
      const answer = await fetch(`/v1/events?since=${this.seq}`, {
        headers: { Accept: "text/event-stream", ...sessionHeaders() }, cache: "no-store", signal: controller.signal,
      });
      if (!answer.ok || !answer.body) throw new Error(`status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parse = parser((id, type, data) => this.take(id, type, data));
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        alive();
        parse(value);
      }
    } catch {
      // Refused, cut off or silent: try again in each case.
    }
    clearTimeout(watch);
    this.controller = null;
    if (this.stopped) return;
    const pause = PAUSES_MS[Math.min(this.failures, PAUSES_MS.length - 1)] * (0.85 + Math.random() * 0.3);
    this.failures += 1;
    this.hooks.onState("waiting", Date.now() + pause);
    this.timer = setTimeout(() => this.connect(), pause);
  }

  take(id, type, data) {
    if (id !== null) this.seq = Number(id);
    if (data === "") return;
    const content = JSON.parse(data);
    if (type === "hello") {
      this.failures = 0;
      this.hooks.onState("live", 0);
    }
    if (type === "reset") this.seq = content.seq;
    if (id !== null) this.hooks.onEvent(content);
    else this.hooks.onNotice(type, content);
  }
}

/** Server-sent events out of pieces of text. @param {(id: string | null, type: string, data: string) => void} take */
export function parser(take) {
  let rest = "";
  let id = null;
  let type = "message";
  let data = [];
  return (piece) => {
    const lines = (rest + piece).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        take(id, type, data.join("\n"));
        [id, type, data] = [null, "message", []];
        continue;
      }
      const colon = line.indexOf(":");
      const name = line.slice(0, colon);
      const value = line.slice(colon + 1).replace(/^ /, "");
      if (name === "id") id = value;
      else if (name === "event") type = value;
      else if (name === "data") data.push(value);
    }
  };
}
