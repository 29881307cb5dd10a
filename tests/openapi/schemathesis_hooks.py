"""Gives the generator real things to name: the tenant of `postrider dev`, and some objects of each kind.

Without them nearly every request would end at `tenant_not_found`. Only what requests are generated from is changed; answers are
held against the document as it is. There are many of each kind, because requests launch and archive them; a request that deletes one
gets a new one.
"""

import copy
import json
import os
import random
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone

import schemathesis

EACH = 20
# Launches use campaigns up; of the others a tenant may have few, and requests make more.
AMOUNTS = {"campaigns": 60, "webhooks": 4, "connections": 5, "webhooks/deliveries": 4, "webhooks/replays": 1}
DEADLINE_SECONDS = 60

with open(os.environ["READY_FILE"]) as file:
    READY = json.load(file)

SUBSCRIBED = {"marketing_status": "subscribed"}
WORDS = {"subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>"}


def call(path, body=None, method="POST"):
    """Calls the API and answers the body of the answer."""
    tenant = {"product_tenant_id": READY["product_tenant_id"]}
    query = "" if body is not None else f"?{urllib.parse.urlencode(tenant)}"
    request = urllib.request.Request(
        READY["base_url"] + path + query,
        None if body is None else json.dumps({**tenant, **body}).encode(),
        {"Authorization": f"Bearer {READY['live_key']}", "Content-Type": "application/json"},
        method="GET" if body is None else method,
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def eventually(ask):
    """Asks until there is an answer."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return answer


def make_sequence(name):
    wait = {"step_type": "wait", "delay_amount": 2, "delay_unit": "days"}
    made = call("/v1/sequences", {"name": name, "sender_profile_id": READY["sender_id"], "steps": [wait]})["sequence_id"]
    call(f"/v1/sequences/{made}", {"status": "active"}, "PATCH")
    return made


def make_campaign(name, list_id):
    return call(
        "/v1/campaigns",
        {"name": name, "sender_profile_id": READY["sender_id"], "audience_mode": "list", "list_id": list_id, **WORDS},
    )["campaign_id"]


def make_send(address):
    """A send that can be cancelled."""
    due = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
    template = call("/v1/templates", {"name": "Receipt", "template_type": "transactional", **WORDS})["template_id"]
    return call("/v1/transactional", {"template_id": template, "email": address, "scheduled_at": due})["send_id"]


def make_delivery(name):
    return call(f"/v1/webhooks/{MADE['webhooks'][0]}/test", {})["delivery_id"]


def make_replay(name):
    since = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat()
    return call(f"/v1/webhooks/{MADE['webhooks'][0]}/replay", {"since": since})["replay_id"]


def address(name):
    return f"{name}@example.com".lower()


# Makes an object of a kind, named by what stands before `{id}` in its path, and answers its id.
MAKERS = {
    "contacts": lambda name: call("/v1/contacts", {"email": address(name), **SUBSCRIBED})["contact_id"],
    "lists": lambda name: call("/v1/audiences", {"kind": "list", "name": name})["audience_id"],
    "audiences": lambda name: MAKERS["lists"](name),
    "tags": lambda name: call("/v1/audiences", {"kind": "tag", "name": name})["audience_id"],
    "segments": lambda name: call("/v1/segments", {"name": name, "rule": {"field": "email", "op": "exists"}})["segment_id"],
    "fields": lambda name: call("/v1/fields", {"key": name.lower(), "label": name, "type": "string"})["field_id"],
    "imports": lambda name: call("/v1/imports", {"name": name, "csv": f"email\n{address(name)}\n"})["import_id"],
    "domains": lambda name: call("/v1/domains", {"domain": f"{name.lower()}.example"})["domain_id"],
    "senders": lambda name: call("/v1/senders", {"name": name, "email": f"{name.lower()}@acme.example"})["sender_id"],
    "snippets": lambda name: call("/v1/snippets", {"name": name.lower(), "body_html": "<p>Bye</p>"})["snippet_id"],
    "templates": lambda name: call("/v1/templates", {"name": name, **WORDS})["template_id"],
    "campaigns": lambda name: make_campaign(name, MADE["lists"][0]),
    "sends": lambda name: make_send(address(name)),
    "sequences": make_sequence,
    "enrollments": lambda name: call(
        "/v1/enrollments", {"sequence_id": MADE["sequences"][0], "email": address(name)}
    )["enrollment_id"],
    "outcomes": lambda name: call(
        "/v1/outcomes", {"contact_email": address(name), "outcome_type": "bind", "source_event_id": name}
    )["outcome_id"],
    "webhooks": lambda name: call("/v1/webhooks", {"url": READY["inbox_url"], "events": ["email.sent"]})["subscription_id"],
    "webhooks/deliveries": make_delivery,
    "webhooks/replays": make_replay,
    "connections": lambda name: call(
        "/v1/connections", {"name": name, "provider": "postmark", "secret": "s", "stream": "broadcast"}
    )["connection_id"],
    "keys": lambda name: call("/v1/keys", {"label": name, "scopes": ["analytics:read"]})["key_id"],
}


def make(kind):
    """Makes one more; where the tenant has as many as it may, there is none."""
    try:
        return MAKERS[kind](f"n{uuid.uuid4().hex[:12]}")
    except urllib.error.HTTPError as refusal:
        assert refusal.code < 500, refusal.read()
        return None


MADE = {}
for kind in MAKERS:
    MADE[kind] = [made for made in (make(kind) for _ in range(AMOUNTS.get(kind, EACH))) if made]
    assert MADE[kind], kind
MADE["audiences"] = MADE["lists"] + MADE["tags"]
call(f"/v1/audiences/{MADE['lists'][0]}/members", {"add": MADE["contacts"]})


def tokens():
    """The tokens of links to pages, by what stands before them in the path."""
    call("/v1/contacts", {"email": "reader@example.com", **SUBSCRIBED})
    call(f"/v1/audiences/{MADE['lists'][1]}/members", {"add": ["reader@example.com"]})
    link = '<a href="https://shop.example/">Shop</a> <a href="{{ preferences_url }}">Choose</a> <a href="{{ unsubscribe_url }}">Leave</a>'
    campaign = make_campaign("Read", MADE["lists"][1])
    call(f"/v1/campaigns/{campaign}", {"body_html": f"<p>{link}</p>"}, "PATCH")
    call(f"/v1/campaigns/{campaign}/launch", {})
    call("/v1/contacts", {"email": "asked@example.com", "require_verification": True})
    sources = [mail_to("reader@example.com"), mail_to("asked@example.com")]
    found = {}
    for kind, token in re.findall(r"/(t/o|t/c|u|p|c)/(v1\.[\w.-]+)", " ".join(sources)):
        found[kind] = [token]
    found["exports"] = [call("/v1/exports/contacts/links", {})["path"].rsplit("/", 1)[1]]
    return found


def mail_to(recipient):
    """The HTML of the first mail to an address, as soon as the sink has it."""

    def find():
        with urllib.request.urlopen(f"{READY['inbox_url']}/messages?{urllib.parse.urlencode({'to': recipient})}") as answer:
            return json.load(answer)["messages"]

    with urllib.request.urlopen(f"{READY['inbox_url']}/messages/{eventually(find)[0]['id']}") as answer:
        return json.load(answer)["html"]


TOKENS = tokens()
# What a field of a request names, by the field's name.
NAMED = {
    "engine_tenant_id": [READY["engine_tenant_id"]],
    "sender_profile_id": [READY["sender_id"]],
    "sender_id": [READY["sender_id"]],
    "template_id": MADE["templates"],
    "contact_id": MADE["contacts"],
    "campaign_id": MADE["campaigns"],
    "sequence_id": MADE["sequences"],
    "list_id": MADE["lists"],
    "in_list": MADE["lists"],
    "tag_id": MADE["tags"],
    "has_tag": MADE["tags"],
    "segment_id": MADE["segments"],
    "in_segment": MADE["segments"],
}


def kind_of(path):
    """What stands before the parameter of a path."""
    return path.removeprefix("/v1/").removeprefix("analytics/").removeprefix("/").split("/{")[0]


def some(ids):
    """A few of them: each is tried with each request, and other requests take others."""
    return random.sample(ids, min(len(ids), 4))


def pin(schema):
    """Lets the fields of a request body name what there is."""
    if isinstance(schema, list):
        for item in schema:
            pin(item)
    if not isinstance(schema, dict):
        return
    for name, field in schema.get("properties", {}).items():
        if name in NAMED:
            nullable = "null" in field.get("type", [])
            field["enum"] = some(NAMED[name]) + ([None] if nullable else [])
            field.pop("pattern", None)
        elif name == "tag_ids":
            field["items"] = {"type": "string", "enum": some(MADE["tags"])}
    for value in schema.values():
        pin(value)


def pin_example(example):
    """The same for the example of a body."""
    if isinstance(example, dict):
        for name in NAMED.keys() & example.keys():
            example[name] = NAMED[name][0]


def pin_parameter(parameter, kind):
    """Lets a parameter name what there is. Answers whether it does."""
    name, place = parameter["name"], parameter["in"]
    named = {
        "query": NAMED.get(name),
        "path": MADE.get(kind) if name == "id" else TOKENS.get(kind) if name == "token" else None,
    }.get(place)
    if named:
        named = some(named)
        parameter["schema"] = {"type": "string", "enum": named}
        parameter["example"] = named[0]
    return bool(named)


def rename(schema):
    """A copy that refers to the schemas of requests."""
    return json.loads(json.dumps(schema).replace("#/components/schemas/", "#/components/schemas/Named"))


@schemathesis.hook
def before_load_schema(context, raw_schema):
    shared, pinned = raw_schema["components"]["parameters"], set()
    # Answers refer to some of the same schemas: what requests are generated from has names of its own.
    schemas = raw_schema["components"]["schemas"]
    named = rename(schemas)
    pin(named)
    schemas.update({f"Named{name}": schema for name, schema in named.items()})
    for path, item in raw_schema["paths"].items():
        kind = kind_of(path)
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                body["schema"] = rename(body["schema"])
                pin(body["schema"])
                pin_example(body.get("example"))
            own = [shared[p["$ref"].rsplit("/", 1)[1]] if "$ref" in p else p for p in operation.get("parameters", [])]
            operation["parameters"] = copy.deepcopy(own)
            for parameter in operation["parameters"]:
                # What a request deletes is made for it, and has an id that is not known yet.
                is_made = method == "delete" and parameter["in"] == "path" and kind in MAKERS
                if is_made or pin_parameter(parameter, kind) and parameter["in"] == "path":
                    pinned.add(kind)
    assert pinned == (MADE.keys() | TOKENS.keys()) - {"lists", "tags"}, pinned ^ (MADE.keys() | TOKENS.keys())


def is_id(text):
    try:
        return str(uuid.UUID(text)) == text
    except (AttributeError, TypeError, ValueError):
        return False


def name_tenant(fields):
    """Names the tenant there is, where the generated text could be one; what could not be one stays what it is."""
    given = fields.get("product_tenant_id") if isinstance(fields, dict) else None
    if isinstance(given, str) and 0 < len(given) < 256 and given.isprintable() and random.random() < 0.95:
        fields["product_tenant_id"] = READY["product_tenant_id"]


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path != "/v1/tenants/link":
        name_tenant(case.query)
        name_tenant(case.body)
    kind = kind_of(case.path)
    if case.method == "DELETE" and kind in MAKERS and is_id(case.path_parameters.get("id")) and random.random() < 0.9:
        case.path_parameters["id"] = make(kind) or random.choice(MADE[kind])
    # Short keys are generated again and again, and would answer `idempotency_key_reused` nearly always.
    key = (case.headers or {}).get("Idempotency-Key")
    if key and len(key) < 200 and all("!" <= char <= "~" for char in key) and random.random() < 0.9:
        case.headers["Idempotency-Key"] = f"{key}-{uuid.uuid4()}"
