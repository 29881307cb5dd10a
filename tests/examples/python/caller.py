"""Asks and is answered at once: whether a request would be taken, what became of a mail, why somebody was not mailed.

    NATS_URL=… TEMPLATE_ID=… python caller.py ann@example.com
"""

import asyncio
import json
import os
import sys

from door import TENANT, Refused, call, connect


async def main(address):
    client = await connect()
    mail = {"product_tenant_id": TENANT, "template_id": os.environ["TEMPLATE_ID"], "email": address, "data": {"number": 1}}

    # Would it be taken? Nothing is kept.
    print(json.dumps({"validate": await call(client, "validate", {"operation": "sendTransactional", "request": mail})}))
    try:
        await call(client, "validate", {"operation": "sendTransactional", "request": {**mail, "email": "nobody at all"}})
    except Refused as refusal:
        print(json.dumps({"refused": refusal.code, "fields": refusal.fields}))

    # Send it, once: the same id again is answered with the first answer.
    sent = await call(client, "transactional", mail, message_id=f"caller-{address}")
    again = await call(client, "transactional", mail, message_id=f"caller-{address}")
    assert sent == again

    # Follow it.
    for _ in range(600):
        found = await call(client, "send.status", {"product_tenant_id": TENANT, "id": sent["send_id"]})
        if found["send"]["state"] not in ("queued", "fenced"):
            break
        await asyncio.sleep(0.1)
    print(json.dumps({"send.status": found["send"]["state"]}))

    # Why would a campaign not reach somebody? Each gate, with its verdict.
    if "CAMPAIGN_ID" in os.environ:
        asked = {"product_tenant_id": TENANT, "campaign_id": os.environ["CAMPAIGN_ID"], "email": address}
        print(json.dumps({"explain": await call(client, "explain", asked)}))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
