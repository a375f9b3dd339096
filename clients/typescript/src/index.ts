/**
 * A typed client of the Fleetgate HTTP API. The types in schema.ts are generated from its OpenAPI document.
 *
 *     const gate = createFleetgate({ url: "http://127.0.0.1:4180", token });
 *     const { data } = await gate.GET("/v1/status");
 *     await withLease(gate, { models: ["openai/gpt-5"] }, async (lease) => callTheModel(lease.model));
 */

import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./schema.js";

export type { components, paths };
export type Fleetgate = Client<paths>;
export type Acquire = components["schemas"]["AcquireBody"];
export type Lease = components["schemas"]["LeaseAnswer"];
export type Release = components["schemas"]["ReleaseBody"];

export interface Options {
  /** The address of `fleetgate serve`. The default is http://127.0.0.1:4180. */
  url?: string;
  /** The content of the file `token` in the state folder. Reading on loopback needs none. */
  token?: string;
  fetch?: (request: Request) => Promise<Response>;
}

/** An error that the service reports. `reason` is for programs, the message for people. */
export class FleetgateError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly reason: string,
  ) {
    super(message);
    this.name = "FleetgateError";
  }
}

/** The client: `GET`, `POST`, `PUT` and `DELETE` with the paths, parameters and answers of the API. */
export function createFleetgate(options: Options = {}): Fleetgate {
  return createClient<paths>({
    baseUrl: options.url ?? "http://127.0.0.1:4180",
    ...(options.token === undefined ? {} : { headers: { Authorization: `Bearer ${options.token.trim()}` } }),
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
}

const LONG_POLL_S = 25;

/**
 * Waits for a slot, calls `work`, and releases the slot however `work` ends. The lease is renewed meanwhile; `work` gets a
 * signal that is aborted when the lease is lost.
 */
export async function withLease<T>(
  gate: Fleetgate,
  request: Omit<Acquire, "wait_s" | "queue">,
  work: (lease: Lease, signal: AbortSignal) => Promise<T>,
  options: { signal?: AbortSignal } = {},
): Promise<T> {
  const lease = await acquire(gate, request, options.signal);
  const lost = new AbortController();
  const every = (lease.renew_within_s * 1000) / 3;
  const timer = setInterval(() => void renew(gate, lease.lease, lost), every);
  let outcome: Release["outcome"] = "local_error";
  try {
    const result = await work(lease, lost.signal);
    outcome = "ok";
    return result;
  } finally {
    clearInterval(timer);
    await gate.POST("/v1/leases/{ident}/release", { params: { path: { ident: lease.lease } }, body: { outcome } });
  }
}

async function acquire(gate: Fleetgate, request: Acquire, signal?: AbortSignal): Promise<Lease> {
  const id = request.id ?? crypto.randomUUID();
  for (;;) {
    signal?.throwIfAborted();
    const body = { ...request, id, wait_s: LONG_POLL_S, queue: true };
    const found = await gate.POST("/v1/leases", { body, ...(signal ? { signal } : {}) }).catch(async (error: unknown) => {
      await giveUp(gate, id).catch(() => undefined);
      throw error;
    });
    const { data } = found;
    if (data === undefined) throw failure(found.response, found.error);
    if ("lease" in data) return data;
    if (!data.in_queue) throw new FleetgateError(data.reason.text, found.response.status, data.reason.code);
  }
}

/** Leaves the queue, or releases the slot that was granted meanwhile. */
async function giveUp(gate: Fleetgate, ident: string): Promise<void> {
  await gate.POST("/v1/tickets/cancel", { body: { ids: [ident] } });
  await gate.POST("/v1/leases/{ident}/release", { params: { path: { ident } }, body: { outcome: "local_error" } });
}

async function renew(gate: Fleetgate, ident: string, lost: AbortController): Promise<void> {
  const renewed = await gate.POST("/v1/leases/{ident}/renew", { params: { path: { ident } } }).catch(() => undefined);
  const status = renewed?.response.status; // undefined: the service is away, and keeps leases meanwhile
  if (status === 404 || status === 410) lost.abort(failure(renewed!.response, renewed!.error));
}

/** The error of an answer, to throw. */
export function failure(response: Response, error: unknown): FleetgateError {
  const said = (error ?? {}) as { error?: string; reason?: string };
  return new FleetgateError(said.error ?? response.statusText, response.status, said.reason ?? "");
}

/** The events of the log, from `since` on, or from now on. Ends when `signal` is aborted. */
export async function* events(
  options: Options & { since?: number; types?: readonly string[]; signal?: AbortSignal } = {},
): AsyncGenerator<{ seq: number; type: string; data: unknown }> {
  const url = new URL("/v1/events", options.url ?? "http://127.0.0.1:4180");
  if (options.since !== undefined) url.searchParams.set("since", String(options.since));
  if (options.types?.length) url.searchParams.set("types", options.types.join(","));
  const headers = options.token === undefined ? {} : { Authorization: `Bearer ${options.token.trim()}` };
  const request = new Request(url, { headers, ...(options.signal ? { signal: options.signal } : {}) });
  const response = await (options.fetch ?? fetch)(request);
  if (!response.ok || response.body === null) throw failure(response, await response.json().catch(() => undefined));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const event = parse(text.slice(0, end));
        text = text.slice(end + 2);
        if (event !== undefined) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parse(block: string): { seq: number; type: string; data: unknown } | undefined {
  const fields = new Map<string, string>();
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields.set(line.slice(0, colon), line.slice(colon + 1).trimStart());
  }
  const data = fields.get("data");
  if (data === undefined) return undefined;
  return { seq: Number(fields.get("id") ?? NaN), type: fields.get("event") ?? "message", data: JSON.parse(data) as unknown };
}
