// Asks and is answered at once: whether a request would be taken, what became of a mail, why somebody was not mailed.
//
//     NATS_URL=… TEMPLATE_ID=… node caller.mjs ann@example.com
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { call, connect, say, tenant } from "./door.mjs";

const address = process.argv[2];
const client = await connect();
const mail = { product_tenant_id: tenant, template_id: process.env.TEMPLATE_ID, email: address, data: { number: 1 } };

// Would it be taken? Nothing is kept.
say({ validate: await call(client, "validate", { operation: "sendTransactional", request: mail }) });
try {
  await call(client, "validate", { operation: "sendTransactional", request: { ...mail, email: "nobody at all" } });
} catch (refusal) {
  say({ refused: refusal.code, fields: refusal.fields });
}

// Send it, once: the same id again is answered with the first answer.
const sent = await call(client, "transactional", mail, `caller-${address}`);
assert.deepEqual(await call(client, "transactional", mail, `caller-${address}`), sent);

// Follow it.
let state = "queued";
for (let tries = 0; tries < 600 && ["queued", "fenced"].includes(state); tries += 1) {
  state = (await call(client, "send.status", { product_tenant_id: tenant, id: sent.send_id })).send.state;
  await pause(100);
}
say({ "send.status": state });

// Why would a campaign not reach somebody? Each gate, with its verdict.
if (process.env.CAMPAIGN_ID) {
  const asked = { product_tenant_id: tenant, campaign_id: process.env.CAMPAIGN_ID, email: address };
  say({ explain: await call(client, "explain", asked) });
}
await client.close();
