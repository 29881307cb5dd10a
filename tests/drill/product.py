"""What a product does: signed calls, campaigns, transactional mail; and what recipients got of it."""

import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone

FINAL = {"sent", "failed", "unknown", "skipped", "cancelled", "expired"}


def until(what, ask, within=60.0, pause=0.2):
    """Asks until there is an answer. Nothing here sleeps a fixed time and hopes."""
    deadline = time.monotonic() + within
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within:.0f} s in vain for {what}")
        time.sleep(pause)


def http(url, body=None, method=None, headers=None, timeout=40):
    """One request; answers the parsed JSON, or the text if it is none."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})} if data else headers or {}
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


class Product:
    """The demo product of the installation."""

    def __init__(self, facts):
        self.facts = facts

    def call(self, method, path, body=None):
        tenant = self.facts["product_tenant_id"]
        data = b"" if body is None else json.dumps({**body, "product_tenant_id": tenant}).encode()
        timestamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        nonce = secrets.token_hex(16)
        signed = "\n".join([method, path, timestamp, nonce, hashlib.sha256(data).hexdigest()])
        key = self.facts["live_key"]
        headers = {
            "X-Service-Product": self.facts["product"],
            "X-Service-Environment": self.facts["environment"],
            "X-Service-Api-Key": key,
            "X-Service-Timestamp": timestamp,
            "X-Service-Nonce": nonce,
            "X-Service-Signature": "sha256=" + hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest(),
        }
        if data:
            headers |= {"Content-Type": "application/json", "Idempotency-Key": nonce}
        query = "" if data else f"?product_tenant_id={tenant}"
        request = urllib.request.Request(self.facts["base_url"] + path + query, data or None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            raise RuntimeError(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from None

    def ask(self, path):
        """A read that is tried again while the API is away."""

        def once():
            try:
                return self.call("GET", path)
            except (RuntimeError, OSError):
                return None

        return until(f"an answer to {path}", once)


class Mail:
    """The mail of one fault: posted by the product, counted at the relays."""

    def __init__(self, product, relays, name):
        self.product, self.relays, self.name = product, relays, name
        self.addresses, self.campaigns, self.sends = [], [], []

    def campaign(self, count, per_minute=None, domains=("example.com",)):
        """Launches a campaign to so many people."""
        name = f"{self.name}-{secrets.token_hex(4)}"
        people = [f"{name}-{number}@{domains[number % len(domains)]}" for number in range(count)]
        rows = "".join(f"{address},Ann,{name}\n" for address in people)
        imported = self.product.call("POST", "/v1/imports", {"csv": "email,first_name,list\n" + rows})
        assert imported["counts"]["invalid"] == 0, imported
        audiences = self.product.call("GET", "/v1/audiences")["audiences"]
        body = {
            "name": name,
            "sender_profile_id": self.product.facts["sender_id"],
            "audience_mode": "list",
            "list_id": next(found["audience_id"] for found in audiences if found["name"] == name),
            "subject": "A drill",
            "body_html": "<p>Hello {{ first_name }}</p>",
        }
        if per_minute:
            body["max_per_minute"] = per_minute
        campaign = self.product.call("POST", "/v1/campaigns", body)["campaign_id"]
        self.product.call("POST", f"/v1/campaigns/{campaign}/launch", {})
        self.addresses += people
        self.campaigns.append(campaign)
        return people

    def transactional(self, count):
        """Posts transactional mails, each to somebody else."""
        template = {"name": "drill", "template_type": "transactional", "subject": "A drill", "body_html": "<p>Code 17</p>"}
        if not hasattr(self, "template"):
            self.template = self.product.call("POST", "/v1/templates", template)["template_id"]
        for _ in range(count):
            address = f"{self.name}-{secrets.token_hex(6)}@example.com"
            body = {"template_id": self.template, "email": address}
            self.sends.append(self.product.call("POST", "/v1/transactional", body)["send_id"])
            self.addresses.append(address)

    def arrived(self):
        return sum(self.counts())

    def counts(self):
        """How many mails each address got, over all relays."""
        asked = [http(f"{relay}/counts", self.addresses)["counts"] for relay in self.relays]
        return [sum(found["count"] for found in of_one) for of_one in zip(*asked)]

    def unknown(self):
        """Waits until everything is decided; answers how many nobody can know about."""
        unknown = 0
        for campaign in self.campaigns:
            path = f"/v1/campaigns/{campaign}"
            read = lambda: (found := self.product.ask(path))["campaign"]["status"] == "sent" and found
            unknown += until(f"campaign {campaign} to be sent", read, 180)["send_counts"]["unknown"]
        for send in self.sends:
            read = lambda: (found := self.product.ask(f"/v1/sends/{send}")["send"])["state"] in FINAL and found
            unknown += until(f"send {send} to be decided", read, 180)["state"] == "unknown"
        return unknown

    def books(self):
        """(posted, lost, twice, in doubt): who got nothing although the ledger does not say that nobody can know, and who got two."""
        doubt = self.unknown()
        counts = self.counts()
        missing = sum(count == 0 for count in counts)
        return len(counts), max(0, missing - doubt), sum(count > 1 for count in counts), doubt
