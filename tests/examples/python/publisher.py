"""Sends transactional mail straight over NATS: requests in arrays of up to 500.

    NATS_URL=… TEMPLATE_ID=… python publisher.py --count 10000 --name march

JetStream answers each message when it is stored (a PubAck): from then on it is Postrider's. What becomes of each mail is told by
events (subscriber.py); a request that breaks a rule by `request.rejected`.
"""

import argparse
import asyncio
import json
import os

from door import ENVIRONMENT, PRODUCT, TENANT, connect

SUBJECT = f"mail.v1.request.{PRODUCT}.{ENVIRONMENT}.transactional"
MOST = 500
# Messages on their way at once: more than one, so that no time is lost waiting; few, so that a slow store is not flooded.
AT_ONCE = 8


def message(name, number):
    """One request, as `POST /v1/transactional` takes it."""
    return {
        "product_tenant_id": TENANT,
        "template_id": os.environ["TEMPLATE_ID"],
        "email": f"{name}-{number}@example.com",
        "data": {"number": number},
        # A repetition of this one is known by it, in whatever message it comes.
        "idempotency_key": f"{name}-{number}",
    }


async def publish(jetstream, body, message_id):
    """Publishes until the store has it. A repetition is harmless: it has the same id."""
    for pause in (0.1, 1, 5, None):
        try:
            return await jetstream.publish(SUBJECT, json.dumps(body).encode(), headers={"Idempotency-Key": message_id}, timeout=10)
        except Exception:
            if pause is None:
                raise
            await asyncio.sleep(pause)


async def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--count", type=int, default=10_000)
    arguments.add_argument("--name", required=True, help="of this run: the same name again sends nothing twice")
    arguments.add_argument("--broken", action="store_true", help="also publishes a request that breaks the schema")
    asked = arguments.parse_args()

    client = await connect()
    jetstream, places = client.jetstream(), asyncio.Semaphore(AT_ONCE)

    async def send(start):
        numbers = range(start, min(start + MOST, asked.count))
        async with places:
            return await publish(jetstream, [message(asked.name, n) for n in numbers], f"{asked.name}-from-{start}")

    stored = await asyncio.gather(*(send(start) for start in range(0, asked.count, MOST)))
    if asked.broken:
        await publish(jetstream, {"product_tenant_id": TENANT, "email": "nobody at all"}, f"{asked.name}-broken")
    print(json.dumps({
        "published": asked.count, "messages": len(stored), "known_before": sum(1 for answer in stored if answer.duplicate),
    }), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
