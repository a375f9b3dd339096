// Run by tests/agents/test_typescript_client.py against a real service: FLEETGATE_URL and FLEETGATE_TOKEN name it.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createFleetgate, events, failure, FleetgateError, withLease } from "../dist/index.js";

const url = process.env.FLEETGATE_URL;
const token = process.env.FLEETGATE_TOKEN;
const gate = createFleetgate({ url, token });
const models = ["umans/coder"];

const leases = async () => (await gate.GET("/v1/leases")).data.leases;

test("caps are set and the state is read", async () => {
  const { response } = await gate.PUT("/v1/caps", { body: { selector: "umans", cap: 1, kind: "requests", cooldown_ms: 0 } });
  assert.equal(response.status, 200);
  const status = await gate.GET("/v1/status");
  assert.ok(status.data.pools.some((pool) => pool.pool === "umans" && pool.limit === 1));
});

test("a lease is held while the work lasts, and the next request waits for it", async () => {
  const order = [];
  const first = withLease(gate, { models }, async (lease) => {
    order.push("first begins");
    assert.equal(lease.model, "umans/coder");
    while ((await gate.GET("/v1/tickets")).data.tickets.length === 0) await new Promise((done) => setTimeout(done, 10));
    order.push("first ends");
    return 7;
  });
  while ((await leases()).length === 0) await new Promise((done) => setTimeout(done, 10));
  const second = withLease(gate, { models }, async () => order.push("second"));
  assert.equal(await first, 7);
  await second;
  assert.deepEqual(order, ["first begins", "first ends", "second"]);
  assert.equal((await leases()).length, 0);
});

test("work that fails releases its lease, and the error is its own", async () => {
  await assert.rejects(withLease(gate, { models }, async () => Promise.reject(new Error("mine"))), /mine/);
  assert.equal((await leases()).length, 0);
});

test("a request that is aborted leaves the queue", async () => {
  await withLease(gate, { models }, async () => {
    const leave = new AbortController();
    const waiting = withLease(gate, { models }, async () => assert.fail(), { signal: leave.signal });
    while ((await gate.GET("/v1/tickets")).data.tickets.length === 0) await new Promise((done) => setTimeout(done, 10));
    leave.abort();
    await assert.rejects(waiting, { name: "AbortError" });
    assert.equal((await gate.GET("/v1/tickets")).data.tickets.length, 0);
  });
});

test("an error has a status, a reason for programs and a sentence", async () => {
  await assert.rejects(withLease(gate, { models: ["no model"] }, async () => {}), (error) => {
    assert.ok(error instanceof FleetgateError);
    assert.equal(error.status, 400);
    assert.match(error.message, /not a model/);
    return true;
  });
  const stranger = createFleetgate({ url });
  const refused = await stranger.PUT("/v1/caps", { body: { selector: "umans", cap: 9 } });
  assert.equal(failure(refused.response, refused.error).status, 401);
});

test("events are read as they come", async () => {
  const stop = new AbortController();
  const seen = [];
  for await (const event of events({ url, token, since: 0, types: ["granted", "released"], signal: stop.signal })) {
    seen.push(event.type);
    if (event.type === "released") break;
  }
  assert.equal(seen[0], "hello");
  assert.ok(seen.includes("granted"));
});
