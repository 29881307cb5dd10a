"""Gives the generator real things to name: the tenant of `postrider dev`, and one object of each kind.

Without them nearly every request would end at `tenant_not_found`. Only what requests are generated from is changed; answers are
held against the document as it is.
"""

import copy
import json
import os
import urllib.request

import schemathesis

with open(os.environ["POSTRIDER_READY_FILE"]) as file:
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
    """One object of each kind, by the first word of its path."""
    made = {
        "contacts": call("/v1/contacts", {"email": "ann@example.com", "first_name": "Ann"})["contact_id"],
        "list": call("/v1/audiences", {"kind": "list", "name": "Readers"})["audience_id"],
        "tag": call("/v1/audiences", {"kind": "tag", "name": "vip"})["audience_id"],
        "fields": call("/v1/fields", {"key": "plan", "label": "Plan", "type": "string"})["field_id"],
        "imports": call("/v1/imports", {"csv": "email\nbob@example.com\n"})["import_id"],
        "domains": call("/v1/domains", {"domain": "other.example"})["domain_id"],
        "segments": call("/v1/segments", {"name": "Named", "rule": {"field": "first_name", "op": "exists"}})["segment_id"],
    }
    call(f"/v1/audiences/{made['list']}/members", {"add": ["ann@example.com"]})
    words = {"subject": "Hello {{ first_name }}", "body_html": "<p>Hello {{ first_name }}</p>"}
    made["templates"] = call("/v1/templates", {"name": "Hello", **words})["template_id"]
    campaign = {"name": "C", "sender_profile_id": READY["sender_id"], "audience_mode": "list", "list_id": made["list"]}
    made["campaigns"] = call("/v1/campaigns", {**campaign, **words})["campaign_id"]
    transactional = {"template_id": made["templates"], "email": "ann@example.com"}
    made["sends"] = call("/v1/transactional", transactional)["send_id"]
    made["audiences"] = made["list"]
    return made


MADE = furnish()
# What a field of a request names, by the field's name.
NAMED = {
    "product_tenant_id": READY["product_tenant_id"],
    "engine_tenant_id": READY["engine_tenant_id"],
    "sender_profile_id": READY["sender_id"],
    "sender_id": READY["sender_id"],
    "template_id": MADE["templates"],
    "contact_id": MADE["contacts"],
    "campaign_id": MADE["campaigns"],
    "list_id": MADE["list"],
    "tag_id": MADE["tag"],
    "segment_id": MADE["segments"],
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
            field["enum"] = [NAMED[name]] + ([None] if nullable else [])
            field.pop("pattern", None)
        elif name == "tag_ids":
            field["items"] = {"type": "string", "enum": [MADE["tag"]]}
    for value in schema.values():
        pin(value)


@schemathesis.hook
def before_load_schema(context, raw_schema):
    for path, item in raw_schema["paths"].items():
        kind = path.removeprefix("/v1/").split("/")[-2 if path.startswith("/v1/analytics") else 0]
        for operation in item.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                body["schema"] = copy.deepcopy(body["schema"])
                pin(body["schema"])
                pin_example(body.get("example"))
            for parameter in operation.get("parameters", []):
                if parameter.get("in") == "query" and parameter["name"] in NAMED:
                    parameter["schema"] = {"type": "string", "enum": [NAMED[parameter["name"]]]}
                if parameter.get("name") == "id" and kind in MADE:
                    parameter["schema"] = {"type": "string", "format": "uuid", "enum": [MADE[kind]]}


def pin_example(example):
    """The same for the example of a body."""
    if isinstance(example, dict):
        for name in NAMED.keys() & example.keys():
            example[name] = NAMED[name]
