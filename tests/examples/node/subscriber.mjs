// Follows what happened to the product's mail, and misses nothing: a durable consumer goes on where it was.
//
//     NATS_URL=… node subscriber.mjs
//     NATS_URL=… node subscriber.mjs --since 2026-03-01T00:00:00Z    # everything since then once more, of the last seven days
//
// Events come at least once and in no order: recognise a repetition by its id.
import { parseArgs } from "node:util";
import { jetstream } from "@nats-io/jetstream";
import { apiPrefix, call, connect, say } from "./door.mjs";

const { values: asked } = parseArgs({
  options: {
    // Each has a place of its own in the events.
    consumer: { type: "string", default: "events" },
    since: { type: "string" },
    // How many of which type to wait for, as {"email.sent": 10}; for ever without.
    until: { type: "string", default: "{}" },
  },
});
const wanted = Object.entries(JSON.parse(asked.until));
const counts = {};
const known = new Set();

/// Yours. An event is acknowledged when this is done.
function handle(event) {
  if (event.type === "request.rejected") {
    say({ rejected: event.data.message_id, code: event.data.code, fields: event.data.fields });
  }
}

const client = await connect();
// Made by Postrider, or found: a product may pull, and nothing else.
const made = await call(client, "events.consumer", { consumer: asked.consumer, since: asked.since ?? null });
say({ consumer: made.consumer, pending: made.pending });
const consumer = await jetstream(client, { apiPrefix }).consumers.get(made.stream, made.consumer);
const isDone = () => wanted.length > 0 && wanted.every(([type, count]) => (counts[type] ?? 0) >= count);
const messages = await consumer.consume({ max_messages: 100 });
for await (const message of messages) {
  const event = message.json();
  // A real program keeps the ids it has seen in the transaction that handles the event.
  if (!known.has(event.id)) {
    known.add(event.id);
    counts[event.type] = (counts[event.type] ?? 0) + 1;
    handle(event);
  }
  message.ack();
  if (isDone()) break;
}
say({ counts });
await client.drain();
