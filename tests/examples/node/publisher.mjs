// Sends transactional mail straight over NATS: requests in arrays of up to 500.
//
//     NATS_URL=… TEMPLATE_ID=… node publisher.mjs --count 10000 --name march
//
// JetStream answers each message when it is stored (a PubAck): from then on it is Postrider's. What becomes of each mail is told by
// events (subscriber.mjs); a request that breaks a rule by `request.rejected`.
import { parseArgs } from "node:util";
import { jetstream } from "@nats-io/jetstream";
import { connect, environment, product, say, tenant } from "./door.mjs";

const subject = `mail.v1.request.${product}.${environment}.transactional`;
const most = 500;
// Messages on their way at once: more than one, so that no time is lost waiting; few, so that a slow store is not flooded.
const atOnce = 8;

const { values: asked } = parseArgs({
  options: { count: { type: "string", default: "10000" }, name: { type: "string" }, broken: { type: "boolean", default: false } },
});
const count = Number(asked.count);

/// One request, as `POST /v1/transactional` takes it.
const message = (number) => ({
  product_tenant_id: tenant,
  template_id: process.env.TEMPLATE_ID,
  email: `${asked.name}-${number}@example.com`,
  data: { number },
  // A repetition of this one is known by it, in whatever message it comes.
  idempotency_key: `${asked.name}-${number}`,
});

const client = await connect();
const store = jetstream(client, { timeout: 10_000 });
// A repetition is harmless: it has the same id. The client asks again by itself where nobody answers.
const publish = (body, msgID) => store.publish(subject, JSON.stringify(body), { msgID, retries: 3 });

const starts = Array.from({ length: Math.ceil(count / most) }, (_, place) => place * most);
const messages = starts.length;
let knownBefore = 0;
async function work() {
  for (let start = starts.shift(); start !== undefined; start = starts.shift()) {
    const numbers = Array.from({ length: Math.min(most, count - start) }, (_, place) => start + place);
    const stored = await publish(numbers.map(message), `${asked.name}-from-${start}`);
    if (stored.duplicate) knownBefore += 1;
  }
}
await Promise.all(Array.from({ length: atOnce }, work));
if (asked.broken) {
  await publish({ product_tenant_id: tenant, email: "nobody at all" }, `${asked.name}-broken`);
}
say({ published: count, messages, known_before: knownBefore });
await client.close();
