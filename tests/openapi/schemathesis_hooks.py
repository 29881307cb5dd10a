"""Gives the generator real things to name: the tenant of `postrider dev`, and some objects of each kind.

Without them nearly every request would end at `tenant_not_found`. Only what requests are generated from is changed; answers are
held against the document as it is. There are many of each kind, because requests launch, archive and delete them.
"""

import copy
import json
import os
import random
import urllib.request
import uuid

import schemathesis

EACH = 30

with open(os.environ["READY_FILE"]) as file:
    READY = json.load(file)


def call(path, body):
    """Makes an object and answers the body of the answer."""
    request = urllib.request.Request(
        READY["base_url"] + path,
        json.dumps({"product_tenant_id": READY["product_tenant_id"], **body}).encode(),
        {"Authorization": f"Bearer {READY['live_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def furnish():
    """Ids by the first word of the path that takes them."""
    words = {"subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>"}
    csv = "email\nbob@example.com\n"
    made = {
        "contacts": [call("/v1/contacts", {"email": f"ann{n}@example.com"})["contact_id"] for n in range(EACH)],
        "lists": [call("/v1/audiences", {"kind": "list", "name": f"L{n}"})["audience_id"] for n in range(EACH)],
        "tags": [call("/v1/audiences", {"kind": "tag", "name": f"T{n}"})["audience_id"] for n in range(EACH)],
        "fields": [call("/v1/fields", {"key": "plan", "label": "Plan", "type": "string"})["field_id"]],
        "imports": [call("/v1/imports", {"csv": csv})["import_id"]],
        "domains": [call("/v1/domains", {"domain": "other.example"})["domain_id"]],
        "templates": [call("/v1/templates", {"name": f"T{n}", **words})["template_id"] for n in range(EACH)],
    }
    made["audiences"] = made["lists"] + made["tags"]
    for list_id in made["lists"]:
        call(f"/v1/audiences/{list_id}/members", {"add": [f"ann{n}@example.com" for n in range(EACH)]})
    rule = {"field": "email", "op": "exists"}
    made["segments"] = [call("/v1/segments", {"name": f"S{n}", "rule": rule})["segment_id"] for n in range(EACH)]
    campaign = {"sender_profile_id": READY["sender_id"], "audience_mode": "list", **words}
    made["campaigns"] = [
        call("/v1/campaigns", {"name": f"C{n}", "list_id": list_id, **campaign})["campaign_id"]
        for n, list_id in enumerate(made["lists"] * 2)
    ]
    transactional = {"template_id": made["templates"][0], "email": "ann0@example.com"}
    made["sends"] = [call("/v1/transactional", transactional)["send_id"]]
    return made


MADE = furnish()
# What a field of a request names, by the field's name.
NAMED = {
    "engine_tenant_id": [READY["engine_tenant_id"]],
    "sender_profile_id": [READY["sender_id"]],
    "sender_id": [READY["sender_id"]],
    "template_id": MADE["templates"],
    "contact_id": MADE["contacts"],
    "campaign_id": MADE["campaigns"],
    "list_id": MADE["lists"],
    "in_list": MADE["lists"],
    "tag_id": MADE["tags"],
    "has_tag": MADE["tags"],
    "segment_id": MADE["segments"],
    "in_segment": MADE["segments"],
}


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
            field["enum"] = NAMED[name] + ([None] if nullable else [])
            field.pop("pattern", None)
        elif name == "tag_ids":
            field["items"] = {"type": "string", "enum": MADE["tags"]}
    for value in schema.values():
        pin(value)


def pin_example(example):
    """The same for the example of a body."""
    if isinstance(example, dict):
        for name in NAMED.keys() & example.keys():
            example[name] = NAMED[name][0]


@schemathesis.hook
def before_load_schema(context, raw_schema):
    for path, item in raw_schema["paths"].items():
        kind = path.removeprefix("/v1/analytics/").removeprefix("/v1/").split("/")[0]
        for operation in item.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                body["schema"] = copy.deepcopy(body["schema"])
                pin(body["schema"])
                pin_example(body.get("example"))
            for parameter in operation.get("parameters", []):
                if parameter.get("in") == "query" and parameter["name"] in NAMED:
                    parameter["schema"] = {"type": "string", "enum": NAMED[parameter["name"]]}
                if parameter.get("name") == "id" and kind in MADE:
                    parameter["schema"] = {"type": "string", "format": "uuid", "enum": MADE[kind]}


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
    # Short keys are generated again and again, and would answer `idempotency_key_reused` nearly always.
    key = (case.headers or {}).get("Idempotency-Key")
    if key and len(key) < 200 and all("!" <= char <= "~" for char in key) and random.random() < 0.9:
        case.headers["Idempotency-Key"] = f"{key}-{uuid.uuid4()}"
