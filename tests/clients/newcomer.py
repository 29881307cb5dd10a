#!/usr/bin/env python3
"""The first day with Postrider: settings, people, double opt-in, a sequence, a campaign for nine in the morning, an export.

    ./ops/dev --ephemeral --ready-file ready.json
    tests/clients/newcomer.py ready.json target/debug/postrider

Each call is `postrider api <operation>`; ingress/README.md tells the rest. Mail is read from the sink's inbox, links are opened as
a recipient's browser would. Ends with 0 when all of it happened.
"""

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone

FACTS = json.load(open(sys.argv[1], encoding="utf-8"))
POSTRIDER = sys.argv[2]
ENVIRONMENT = {
    **os.environ,
    "POSTRIDER_API_URL": FACTS["base_url"],
    "POSTRIDER_API_KEY": FACTS["live_key"],
    "POSTRIDER_API_TENANT": FACTS["product_tenant_id"],
}
DEADLINE_SECONDS = 60


def api(operation, **fields):
    """Calls an operation and answers what it says: JSON, or the text of an export."""
    path = [f"id={fields.pop('id')}"] if "id" in fields else []
    arguments = path + [f"{name}:={json.dumps(value)}" for name, value in fields.items()]
    answer = subprocess.run(
        [POSTRIDER, "api", operation, *arguments], env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if answer.returncode != 0:
        sys.exit(f"{operation} was refused: {answer.stdout}{answer.stderr}")
    try:
        return json.loads(answer.stdout)
    except json.JSONDecodeError:
        return answer.stdout


def fetch(url, **form):
    """Opens a page; with fields, sends its form."""
    data = urllib.parse.urlencode(form).encode() if form else None
    with urllib.request.urlopen(url, data=data, timeout=DEADLINE_SECONDS) as answer:
        return answer.read().decode()


def eventually(what, ask):
    """Asks until there is an answer."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (answer := ask()):
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not happen")
        time.sleep(0.1)
    return answer


def mail_to(address, subject):
    """The first mail to an address with this in its subject, as soon as it is there."""
    inbox = FACTS["inbox_url"].rstrip("/")

    def found():
        listed = json.loads(fetch(f"{inbox}/messages?{urllib.parse.urlencode({'to': address})}"))["messages"]
        fitting = [mail["id"] for mail in listed if subject in mail["subject"]]
        return fitting and json.loads(fetch(f"{inbox}/messages/{fitting[0]}"))

    return eventually(f"a mail {subject!r} to {address}", found)


def make_settings():
    api("updateTenant", timezone="Europe/Berlin", physical_address="1 Main Street, Springfield",
        frequency_cap={"messages": 3, "days": 7}, pages={"button_color": "#1d4ed8"})
    assert api("getTenant")["tenant"]["timezone"] == "Europe/Berlin"


def import_people():
    """Three rows are two people, who are asked whether they want mail. Answers their list."""
    sheet = io.StringIO()
    csv.writer(sheet).writerows([
        ["email", "first_name", "timezone", "list"],
        ["ann@example.com", "Ann", "Europe/Berlin", "News"],
        ["bob@example.com", "Bob", "America/New_York", "News"],
        ["ANN@example.com", "Ann", "Europe/Berlin", "News"],
    ])
    counts = api("createImport", name="first", csv=sheet.getvalue(),
                 compliance={"marketing_allowed": True, "require_verification": True})["counts"]
    assert (counts["created"], counts["duplicates"]) == (2, 1), counts
    return api("listAudiences")["audiences"][0]["audience_id"]


def contact(address):
    return api("listContacts", email=address)["contacts"][0]


def confirm(address):
    """Opening the link shows a page, and changes nothing; its button is the consent."""
    mail = mail_to(address, "onfirm")
    link = re.search(r"https?://\S+/c/[\w.-]+", mail["text"]).group()
    assert "<form" in fetch(link)
    assert contact(address)["marketing_status"] == "pending"
    fetch(link, confirm="yes")
    assert contact(address)["marketing_status"] == "subscribed"


def start_sequence_by_event():
    template = api("createTemplate", name="Trial", template_type="sequence", subject="Your trial, {{ first_name }}",
                   body_html="<p>You try {{ event.properties.plan }}.</p>")
    sequence = api("createSequence", name="Trial", sender_profile_id=FACTS["sender_id"],
                   trigger_type="event", trigger_config={"event": "trial_started"},
                   steps=[{"step_type": "send_email", "template_id": template["template_id"]}])
    api("updateSequence", id=sequence["sequence_id"], status="active")
    api("recordEvents", name="trial_started", email="ann@example.com", properties={"plan": "Pro"})
    assert "You try Pro." in mail_to("ann@example.com", "Your trial, Ann")["html"]


def schedule_for_nine(audience):
    """A test to oneself; then the launch. Ann's nine o'clock comes before Bob's."""
    campaign = api("createCampaign", name="News", sender_profile_id=FACTS["sender_id"], audience_mode="list", list_id=audience,
                   subject="News for {{ first_name }}", body_html="<p>Hello {{ first_name }}</p>")["campaign_id"]
    api("testCampaign", id=campaign, to=["me@example.org"], sample={"first_name": "Me"})
    mail_to("me@example.org", "News for Me")
    day = (datetime.now(timezone.utc) + timedelta(days=2)).date()
    launched = api("launchCampaign", id=campaign, schedule_for_local=f"{day}T09:00:00")
    moments = [(waiting["until"], waiting["count"]) for waiting in launched["waiting"]]
    assert len(moments) == 2 and [count for _, count in moments] == [1, 1] and moments == sorted(moments), launched
    # Nobody wants to wait until then.
    api("updateCampaign", id=campaign, status="draft")
    api("launchCampaign", id=campaign)
    for address, name in [("ann@example.com", "Ann"), ("bob@example.com", "Bob")]:
        assert f"Hello {name}" in mail_to(address, f"News for {name}")["html"]
    eventually("the end of the campaign", lambda: api("getCampaign", id=campaign)["campaign"]["status"] == "sent")
    return campaign


def export_results(campaign):
    rows = list(csv.DictReader(io.StringIO(api("exportSends", format="csv"))))
    sent = {row["email"] for row in rows if row["campaign_id"] == campaign and row["state"] == "sent"}
    assert sent == {"ann@example.com", "bob@example.com"}, rows


def main():
    make_settings()
    audience = import_people()
    for address in ["ann@example.com", "bob@example.com"]:
        confirm(address)
    start_sequence_by_event()
    export_results(schedule_for_nine(audience))


if __name__ == "__main__":
    main()
