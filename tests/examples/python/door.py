"""How a program gets to Postrider's front door on NATS. What the others here share."""

import json
import os

import nats

PRODUCT = os.environ.get("PRODUCT", "demo")
ENVIRONMENT = os.environ.get("ENVIRONMENT", "production")
TENANT = os.environ.get("TENANT", "demo-tenant")
# Where servers know users, a product reaches its own consumers under this name, and nothing else of JetStream's interface.
API_PREFIX = "mail.v1.follow" if "NATS_SEED_FILE" in os.environ else "$JS.API"


async def connect():
    """Connects as the product's user.

    NATS_URL names the servers, as tls://nats-0:4222,tls://nats-1:4222; NATS_SEED_FILE the file that `postrider nats-user` wrote
    (left out where the servers know no users). SSL_CERT_FILE names an authority of your own.
    """

    async def say(error):
        print(json.dumps({"nats": str(error)}), flush=True)

    return await nats.connect(
        os.environ["NATS_URL"].split(","),
        nkeys_seed=os.environ.get("NATS_SEED_FILE"),
        # The only inbox that this user may listen to, and nobody else.
        inbox_prefix=f"_INBOX_{PRODUCT}_{ENVIRONMENT}".encode(),
        error_cb=say,
    )


class Refused(Exception):
    """A call that was answered, but not done: `code` is for programs."""

    def __init__(self, status, body):
        super().__init__(f"{status} {body['error']}: {body.get('detail')}")
        self.status, self.code, self.fields = status, body["error"], body.get("fields", [])


async def call(client, operation, body=None, message_id=None, timeout=30):
    """Asks and waits for the answer, which is the one HTTP would give. With a message id it is done once, however often it is asked."""
    headers = {"Idempotency-Key": message_id} if message_id else None
    subject = f"mail.v1.api.{PRODUCT}.{ENVIRONMENT}.{operation}"
    answer = await client.request(subject, json.dumps(body or {}).encode(), timeout=timeout, headers=headers)
    told, status = json.loads(answer.data), int(answer.headers["Mail-Status"])
    if status >= 300:
        raise Refused(status, told)
    return told
