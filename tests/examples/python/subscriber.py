"""Follows what happened to the product's mail, and misses nothing: a durable consumer goes on where it was.

    NATS_URL=… python subscriber.py
    NATS_URL=… python subscriber.py --since 2026-03-01T00:00:00Z    # everything since then once more, of the last seven days

Events come at least once and in no order: recognise a repetition by its id.
"""

import argparse
import asyncio
import json

import nats.errors

from door import API_PREFIX, ENVIRONMENT, PRODUCT, call, connect


def handle(event):
    """Yours. An event is acknowledged when this is done."""
    if event["type"] == "request.rejected":
        told = event["data"]
        print(json.dumps({"rejected": told["message_id"], "code": told["code"], "fields": told["fields"]}), flush=True)


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--consumer", default="events", help="each has a place of its own in the events")
    arguments.add_argument("--since", help="RFC 3339")
    arguments.add_argument("--until", default="{}", help='how many of which type to wait for, as {"email.sent": 10}; for ever without')
    asked = arguments.parse_args()
    wanted, counts, known = json.loads(asked.until), {}, set()

    client = await connect()
    # Made by Postrider, or found: a product may pull, and nothing else.
    made = await call(client, "events.consumer", {"consumer": asked.consumer, "since": asked.since})
    print(json.dumps({"consumer": made["consumer"], "pending": made["pending"]}), flush=True)
    feed = await client.jetstream(prefix=API_PREFIX).pull_subscribe_bind(
        consumer=made["consumer"], stream=made["stream"], inbox_prefix=f"_INBOX_{PRODUCT}_{ENVIRONMENT}.".encode())
    while not wanted or any(counts.get(kind, 0) < count for kind, count in wanted.items()):
        try:
            messages = await feed.fetch(batch=100, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            event = json.loads(message.data)
            # A real program keeps the ids it has seen in the transaction that handles the event.
            if event["id"] not in known:
                known.add(event["id"])
                counts[event["type"]] = counts.get(event["type"], 0) + 1
                handle(event)
            await message.ack()
    print(json.dumps({"counts": counts}), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
