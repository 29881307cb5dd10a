#!/usr/bin/env python3
"""Tries what the users of accounts.conf may do and what they may not, on three real servers that run cluster.conf.

    $(tests/examples/prepare.sh python) ops/nats/try.py

Needs openssl, and nats-server on PATH or beside this Python. Ends with 1 when anything is not as it is said to be. The test suite runs
it, too (tests/tests/pipeline/front_door.rs).
"""

import asyncio
import base64
import json
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import nats
import nkeys
from nats.errors import NoRespondersError, NoServersError, TimeoutError as NatsTimeout

HERE = Path(__file__).resolve().parent
SERVERS = ("nats-0", "nats-1", "nats-2")
# Those with an inbox of their own.
PROCESSES = ("audience", "compliance", "rendering", "delivery", "engagement", "attribution", "webhooks", "sequencing", "ingress",
             "engine_all")
WAIT = 30
# Long enough for an answer that will never come to be told from one that comes.
SILENCE = 1.0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def new_key():
    """A user's seed and public key."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def certificates(place):
    """An authority, and one certificate that serves for all three."""

    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=place, check=True, capture_output=True)

    names = "subjectAltName=IP:127.0.0.1," + ",".join(f"DNS:{name}" for name in SERVERS)
    (place / "names").write_text(names)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-days", "1", "-subj", "/CN=authority")
    openssl("req", *curve, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=nats")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1",
            "-extfile", "names", "-out", "tls.crt")


class Cluster:
    """Three servers with the files as they are, but for ports, paths and addresses."""

    def __init__(self, place):
        self.place = place
        certificates(place)
        self.seeds = {}
        self.env = dict(os.environ)
        for name in set(re.findall(r"\$POSTRIDER_NKEY_(\w+)", (HERE / "accounts.conf").read_text())):
            self.seeds[name.lower()], self.env[f"POSTRIDER_NKEY_{name}"] = new_key()
        template = (HERE / "product-user.template").read_text()
        users = []
        for product in ("acme", "rival"):
            self.seeds[product], public = new_key()
            users.append(template.replace("@PRODUCT@", product).replace("@ENVIRONMENT@", "production").replace("@NKEY@", public))
        shutil.copy(HERE / "accounts.conf", place)
        (place / "products.conf").write_text("users: [\n" + "".join(users) + "]\n")
        self.ports = [free_port() for _ in SERVERS]
        self.processes = []

    def start(self):
        binary = shutil.which("nats-server") or Path(sys.executable).parent / "nats-server"
        routes = [free_port() for _ in SERVERS]
        text = (HERE / "cluster.conf").read_text().replace("/etc/nats-tls/", f"{self.place}/")
        for name, route in zip(SERVERS, routes):
            text = text.replace(f"nats-route://{name}.nats:6222", f"nats-route://127.0.0.1:{route}")
        for name, port, route in zip(SERVERS, self.ports, routes):
            own = text.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace("0.0.0.0:6222", f"127.0.0.1:{route}")
            own = own.replace("127.0.0.1:8222", f"127.0.0.1:{free_port()}").replace("/data", f"{self.place}/{name}")
            own = own.replace("/run/nats/", f"{self.place}/{name}-")
            path = self.place / f"{name}.conf"
            path.write_text(own)
            log = (self.place / f"{name}.log").open("w")
            env = {**self.env, "NATS_SERVER_NAME": name}
            self.processes.append(subprocess.Popen([binary, "--config", path], env=env, stdout=log, stderr=log))

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(10)

    def tls(self):
        return ssl.create_default_context(cafile=self.place / "ca.crt")

    async def connect(self, user, **options):
        """A client of this user. What the server refuses it is gathered in `refused`."""
        refused = []

        async def note(error):
            refused.append(str(error))

        seed = self.seeds.get(user)
        if user in PROCESSES:
            options.setdefault("inbox_prefix", f"_INBOX_{user}".encode())
        client = await nats.connect(
            [f"tls://127.0.0.1:{port}" for port in self.ports], nkeys_seed_str=seed, tls=self.tls(), error_cb=note,
            allow_reconnect=False, connect_timeout=5, **options)
        client.refused = refused
        return client


faults = []


def check(said, holds):
    print(("ok    " if holds else "FAULT ") + said)
    if not holds:
        faults.append(said)


async def until(condition, what):
    for _ in range(WAIT * 10):
        try:
            if result := await condition():
                return result
        except (NatsTimeout, NoServersError, OSError, nats.errors.Error):
            pass
        await asyncio.sleep(0.1)
    raise SystemExit(f"waited in vain: {what}")


async def was_refused(client):
    """A refusal comes before the answer to a ping that was sent after it; the client tells of it a moment later."""
    await client.flush(WAIT)
    for _ in range(20):
        if client.refused:
            return True
        await asyncio.sleep(0.01)
    return False


async def may_publish(client, subject, body=b"{}"):
    client.refused.clear()
    await client.publish(subject, body)
    return not await was_refused(client)


async def may_hear(client, subject):
    client.refused.clear()
    subscription = await client.subscribe(subject)
    allowed = not await was_refused(client)
    if allowed:
        await subscription.unsubscribe()
    return allowed


async def ask(client, subject, body=None, headers=None):
    clock = asyncio.get_running_loop().time
    until = clock() + WAIT
    while True:
        try:
            answer = await client.request(subject, json.dumps(body or {}).encode(), timeout=5, headers=headers)
            break
        except NoRespondersError:
            # Who answers may have subscribed at another server a moment ago.
            if clock() > until:
                raise
            await asyncio.sleep(0.1)
    return json.loads(answer.data)


def stream(name, subjects, work_queue):
    return {"name": name, "subjects": [subjects], "retention": "workqueue" if work_queue else "limits", "num_replicas": 3,
            "storage": "file", "max_bytes": 1 << 24, "discard": "new" if work_queue else "old", "allow_direct": True}


async def operator_makes_streams(operator, audience, engine_all):
    for name, subjects, work_queue in (
        ("MAIL_REQUESTS", "mail.v1.request.*.*.*", True), ("MAIL_ACCEPTED", "mail.v1.accepted.*.*.*", True),
        ("MAIL_RESOLVED", "mail.v1.resolved.*", True), ("MAIL_CLEARED", "mail.v1.cleared.*", True), ("MAIL_MARKS", "mail.v1.mark", False),
        ("MAIL_RENDERED", "mail.v1.rendered.*", True), ("MAIL_SIGNALS", "mail.v1.signal.*", True),
        ("MAIL_EVENTS", "mail.v1.event.*.*.*.*", False), ("MAIL_DEAD", "mail.v1.dead.*", False),
    ):
        async def made(name=name, subjects=subjects, work_queue=work_queue):
            answer = await ask(operator, f"$JS.API.STREAM.CREATE.{name}", stream(name, subjects, work_queue))
            return "config" in answer
        await until(made, f"stream {name} with three copies")
    answer = await ask(operator, "$JS.API.STREAM.UPDATE.MAIL_EVENTS", stream("MAIL_EVENTS", "mail.v1.event.*.*.*.*", False))
    check("an operator makes streams with three copies, and brings one up to date", "config" in answer)
    # `max_msgs: 1`, `max_age`, `republish`: an update is as good as a purge.
    for client, who in ((audience, "a stage"), (engine_all, "a process of everything")):
        for act in ("CREATE", "UPDATE"):
            subject = f"$JS.API.STREAM.{act}.MAIL_REQUESTS"
            check(f"{who} may not publish {subject}", not await may_publish(client, subject))
        check(f"{who} sees whether a stream is there", "config" in await ask(client, "$JS.API.STREAM.INFO.MAIL_REQUESTS"))


async def held(client, name):
    return (await ask(client, f"$JS.API.STREAM.INFO.{name}"))["state"]["messages"]


async def stages(cluster, audience):
    delivery, compliance = await cluster.connect("delivery"), await cluster.connect("compliance")
    ingress = await cluster.connect("ingress")
    answer = await ask(ingress, "mail.v1.accepted.acme.production.transactional", {"n": 0}, {"Nats-Msg-Id": "a"})
    check("the ingress rings for a request, and the store answers", answer.get("stream") == "MAIL_ACCEPTED")
    for subject, stream in (("mail.v1.cleared.priority", "MAIL_CLEARED"), ("mail.v1.resolved.priority", "MAIL_RESOLVED")):
        answer = await ask(ingress, subject, {"n": 0}, {"Nats-Msg-Id": f"a-{stream}"})
        check(f"the ingress announces batches of prompt mail on {subject}", answer.get("stream") == stream)

    durable = {"durable_name": "audience-priority", "ack_policy": "explicit", "ack_wait": 30_000_000_000,
               "filter_subjects": ["mail.v1.accepted.*.*.transactional"]}
    answer = await ask(audience, "$JS.API.CONSUMER.CREATE.MAIL_ACCEPTED.audience-priority",
                       {"stream_name": "MAIL_ACCEPTED", "config": durable})
    check("audience makes its own consumer", "config" in answer)
    inbox = audience.new_inbox()
    heard = await audience.subscribe(inbox)
    # Another server may learn of a new consumer a moment later, and answers a pull before with a status: "no responders".
    async def pulled():
        await audience.publish("$JS.API.CONSUMER.MSG.NEXT.MAIL_ACCEPTED.audience-priority", b'{"batch":1,"expires":20000000000}', reply=inbox)
        message = await heard.next_msg(WAIT)
        return None if message.subject == inbox else message
    message = await until(pulled, "a message for the pull")
    check("audience pulls a message", message.subject == "mail.v1.accepted.acme.production.transactional")
    audience.refused.clear()
    await audience.request(message.reply, b"+ACK", timeout=5)

    async def gone():
        return await held(audience, "MAIL_ACCEPTED") == 0
    await until(gone, "the message to leave on acknowledgement")
    check("audience acknowledges, and the message leaves", not audience.refused)
    answer = await ask(audience, "$JS.API.CONSUMER.INFO.MAIL_ACCEPTED.audience-priority")
    check("audience asks what waits for it", answer.get("num_pending") == 0)
    answer = await ask(audience, "mail.v1.resolved.bulk", {}, {"Nats-Msg-Id": "b"})
    check("audience hands on", answer.get("stream") == "MAIL_RESOLVED")
    check("a stage sets a message aside", await may_publish(audience, "mail.v1.dead.audience"))
    check("a stage rings for facts", await may_publish(audience, "mail.v1.fact.audience"))
    check("a stage tells who waits", await may_publish(delivery, "mail.v1.reply.0198c0de") and await may_hear(ingress, "mail.v1.reply.0198c0de"))

    for client, who, subject in (
        (audience, "audience", "mail.v1.rendered.bulk"), (compliance, "compliance", "mail.v1.rendered.bulk"),
        (compliance, "compliance", "mail.v1.request.acme.production.message"), (delivery, "delivery", "mail.v1.resolved.bulk"),
        (delivery, "delivery", "mail.v1.event.acme.production.email.sent"), (delivery, "delivery", "mail.v1.dead.audience"),
        (ingress, "the ingress", "mail.v1.rendered.priority"), (ingress, "the ingress", "mail.v1.event.acme.production.email.sent"),
        (audience, "audience", "$JS.API.STREAM.PURGE.MAIL_REQUESTS"), (audience, "audience", "$JS.API.STREAM.DELETE.MAIL_REQUESTS"),
        (audience, "audience", "$JS.API.STREAM.MSG.DELETE.MAIL_ACCEPTED"), (audience, "audience", "mail.v1.control"),
        (delivery, "delivery", "$JS.API.CONSUMER.CREATE.MAIL_ACCEPTED.audience-priority"),
        (delivery, "delivery", "$JS.API.CONSUMER.CREATE.MAIL_RENDERED.spy"),
        (delivery, "delivery", "$JS.API.CONSUMER.MSG.NEXT.MAIL_ACCEPTED.audience-priority"),
        (delivery, "delivery", "$JS.API.CONSUMER.DELETE.MAIL_RENDERED.delivery-bulk"),
        (delivery, "delivery", "$JS.API.STREAM.MSG.GET.MAIL_REQUESTS"), (compliance, "compliance", "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.mine"),
        (delivery, "delivery", "$JS.ACK.MAIL_ACCEPTED.audience-priority.1.1.1.1.0"),
        (ingress, "the ingress", "$JS.API.STREAM.MSG.GET.MAIL_RENDERED"),
    ):
        check(f"{who} may not publish {subject}", not await may_publish(client, subject))
    for client, who, subject in (
        (delivery, "delivery", "mail.v1.>"), (audience, "audience", "mail.v1.rendered.*"), (ingress, "the ingress", "mail.v1.signal.*"),
        (ingress, "the ingress", ">"), (delivery, "delivery", "mail.v1.reply.*"),
    ):
        check(f"{who} may not listen to {subject}", not await may_hear(client, subject))
    await inboxes(cluster, audience, delivery)
    for client in (delivery, compliance):
        await client.close()
    return ingress


async def inboxes(cluster, audience, delivery):
    """What a stage pulls travels to its inbox, and what acknowledges it with it: no other may listen there, or answer for it."""
    for pattern in ("_INBOX.>", "_INBOX_delivery.>", "*.>"):
        check(f"audience may not listen to {pattern}", not await may_hear(audience, pattern))
    check("audience may listen to its own inbox", await may_hear(audience, "_INBOX_audience.>"))
    check("delivery says how far the ledger has come", await may_publish(delivery, "mail.v1.mark"))
    check("audience may not publish mail.v1.mark", not await may_publish(audience, "mail.v1.mark"))
    operator = await cluster.connect("operator")
    told = await audience.subscribe("mail.v1.control")
    await audience.flush(WAIT)
    aim = "mail.v1.rendered.bulk"


    # Another server of the cluster learns of a subscription after it was confirmed: what was published there before is not heard.
    async def heard():
        await operator.publish("mail.v1.control", b"{}", reply=aim)
        return await told.next_msg(0.2)
    message = await until(heard, "a stage hears an operator's command")
    check("a stage may not answer where a message says", message.reply == aim and not await may_publish(audience, message.reply))
    check("a stage answers an operator's command", await may_publish(audience, "mail.v1.control.answer.0198c0de"))
    await told.unsubscribe()
    await operator.close()


async def products(cluster, audience, ingress):
    acme = await cluster.connect("acme", inbox_prefix=b"_INBOX_acme_production")
    rival = await cluster.connect("rival", inbox_prefix=b"_INBOX_rival_production")
    subject = "mail.v1.request.acme.production.transactional"
    before = await held(audience, "MAIL_REQUESTS")
    answer = await ask(acme, subject, {"n": 1}, {"Nats-Msg-Id": "order-1"})
    check("a product publishes a request and is answered by the store", answer.get("stream") == "MAIL_REQUESTS")
    answer = await ask(acme, subject, {"n": 1}, {"Nats-Msg-Id": "order-1"})
    check("a repeat is known by its id", answer.get("duplicate") is True)
    check("the request stands once", await held(audience, "MAIL_REQUESTS") == before + 1)

    async def serve(request):
        await request.respond(b'{"ok":true}')
    served = await ingress.subscribe("mail.v1.api.*.*.>", queue="ingress", cb=serve)
    await ingress.flush(WAIT)
    answer = await ask(acme, "mail.v1.api.acme.production.validate")
    check("a product asks and the ingress answers", answer == {"ok": True})
    await served.unsubscribe()

    async def describe(request):
        await request.respond(b'{"name":"postrider"}')
    described = await ingress.subscribe("$SRV.INFO.postrider", cb=describe)
    await ingress.flush(WAIT)
    answer = await ask(acme, "$SRV.INFO.postrider")
    check("a product asks which calls there are", answer == {"name": "postrider"})
    await described.unsubscribe()

    webhooks = await cluster.connect("webhooks")
    mine, theirs = await acme.subscribe("mail.v1.event.acme.production.>"), await rival.subscribe("mail.v1.event.rival.production.>")
    await acme.flush(WAIT)
    await rival.flush(WAIT)

    async def publish_event():
        """Publishes until the product's subscription is known at every server; how many events there are is counted."""
        answer = await ask(webhooks, "mail.v1.event.acme.production.email.sent", {"type": "email.sent"}, {"ce-type": "email.sent"})
        sent.append(answer.get("stream"))
        return await mine.next_msg(0.2)
    sent = []
    event = await until(publish_event, "a product hears an event")
    check("webhooks publishes an event", set(sent) == {"MAIL_EVENTS"})
    check("the product hears it, with its headers", event.subject.endswith("email.sent") and event.headers["ce-type"] == "email.sent")
    try:
        await theirs.next_msg(SILENCE)
        check("another product does not", False)
    except NatsTimeout:
        check("another product does not", True)
    await mine.unsubscribe()
    await follows(acme, rival, ingress, webhooks, len(sent))

    for forbidden in (
        "mail.v1.request.rival.production.message", "mail.v1.request.acme.sandbox.message", "mail.v1.request.acme",
        "mail.v1.request.acme.production.postcard",
        "mail.v1.api.rival.production.message", "mail.v1.event.acme.production.email.sent", "mail.v1.rendered.priority",
        "mail.v1.signal.tracking", "mail.v1.fact.audience", "mail.v1.reply.0198c0de", "mail.v1.dead.audience",
        "$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.MAIL_REQUESTS", "$JS.API.STREAM.PURGE.MAIL_REQUESTS",
        "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.mine", "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.acme_production_events",
        "$JS.API.CONSUMER.DELETE.MAIL_EVENTS.acme_production_events", "$JS.API.CONSUMER.MSG.NEXT.MAIL_EVENTS.acme_production_events",
        "mail.v1.follow.CONSUMER.CREATE.MAIL_EVENTS.acme_production_events", "mail.v1.follow.STREAM.PURGE.MAIL_EVENTS",
        "mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.acme_production_other",
        "mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.rival_production_events",
        "mail.v1.follow.CONSUMER.INFO.MAIL_EVENTS.rival_production_events",
        "$JS.ACK.MAIL_EVENTS.rival_production_events.1.1.1.1.0", "$JS.API.CONSUMER.MSG.NEXT.MAIL_REQUESTS.ingress-prompt",
        "$JS.API.STREAM.MSG.GET.MAIL_RENDERED", "$JS.API.DIRECT.GET.MAIL_EVENTS", "mail.v1.accepted.acme.production.transactional",
        "mail.v1.control", "mail.v1.mark", "$JS.ACK.MAIL_ACCEPTED.audience-priority.1.1.1.1.0", "$SRV.STATS.postrider", "$SYS.REQ.SERVER.PING", "_INBOX_rival_production.x",
    ):
        check(f"a product may not publish {forbidden}", not await may_publish(acme, forbidden))
    for forbidden in (
        ">", "mail.v1.>", "mail.v1.event.>", "mail.v1.event.rival.production.>", "mail.v1.event.acme.sandbox.>", "mail.v1.event.*.*.>",
        "mail.v1.request.>", "mail.v1.request.acme.production.>", "mail.v1.rendered.*", "mail.v1.signal.*", "_INBOX.>",
        "_INBOX_rival_production.>", "$JS.>", "$SYS.>",
    ):
        check(f"a product may not listen to {forbidden}", not await may_hear(acme, forbidden))
    await replies(acme, audience, subject)
    for client in (acme, rival, webhooks):
        await client.close()


async def follows(acme, rival, ingress, webhooks, sent):
    """A durable consumer of a product's events: made by the ingress, pulled from and acknowledged by the product's user."""
    durable = {"durable_name": "acme_production_events", "ack_policy": "explicit", "ack_wait": 2_000_000_000,
               "filter_subject": "mail.v1.event.acme.production.>", "deliver_policy": "all"}
    subject = "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.acme_production_events.mail.v1.event.acme.production.>"
    answer = await ask(ingress, subject, {"stream_name": "MAIL_EVENTS", "config": durable})
    check(f"the ingress makes a product's consumer: {answer.get('error')}", "config" in answer)
    for number in range(3):
        await ask(webhooks, "mail.v1.event.acme.production.email.opened", {"number": number})
        await ask(webhooks, "mail.v1.event.rival.production.email.opened", {"number": number})
    feed = await acme.jetstream(prefix="mail.v1.follow").pull_subscribe_bind(
        consumer="acme_production_events", stream="MAIL_EVENTS", inbox_prefix=b"_INBOX_acme_production.")
    seen = []
    while len(seen) < sent + 3:
        for message in await feed.fetch(10, timeout=WAIT):
            seen.append(message.subject)
            await message.ack()
    own = ["mail.v1.event.acme.production.email.sent", "mail.v1.event.acme.production.email.opened"]
    check("a product pulls its own events, also those of before it asked",
          seen == own[:1] * sent + own[1:] * 3)
    info = "mail.v1.follow.CONSUMER.INFO.MAIL_EVENTS.acme_production_events"

    async def acknowledged():
        answer = await ask(acme, info)
        return answer["num_pending"] == 0 and answer["num_ack_pending"] == 0
    await until(acknowledged, "the acknowledgements of a product to count")
    check("a product acknowledges, and asks how far it is", not acme.refused)
    pull = "mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.acme_production_events"
    check("another product may not pull from it", not await may_publish(rival, pull))
    # What is pulled goes to where the puller may listen, whatever subject it names for it.
    await ask(webhooks, "mail.v1.event.acme.production.email.opened", {"number": 3})
    before = {name: await held(ingress, name) for name in ("MAIL_SIGNALS", "MAIL_RENDERED", "MAIL_ACCEPTED")}
    for aim in ("mail.v1.signal.tracking", "mail.v1.rendered.priority", "mail.v1.accepted.acme.production.message"):
        await acme.publish(pull, b'{"batch":1,"expires":1000000000}', reply=aim)
    await acme.flush(WAIT)
    await asyncio.sleep(SILENCE)
    after = {name: await held(ingress, name) for name in before}
    check(f"events that are pulled become no message of the engine's: {before} {after}", before == after)


async def replies(acme, audience, subject):
    """Whoever asks names where the answer goes. The answer must not become a command or a message of the engine's."""
    before = {name: await held(audience, name) for name in ("MAIL_REQUESTS", "MAIL_SIGNALS", "MAIL_RENDERED")}
    aims = ("$JS.API.STREAM.PURGE.MAIL_REQUESTS", "$JS.API.STREAM.DELETE.MAIL_REQUESTS", "mail.v1.signal.tracking",
            "mail.v1.rendered.priority", "$JS.ACK.MAIL_ACCEPTED.audience-priority.1.1.1.1.0")
    for at, aim in enumerate(aims):
        try:
            await acme.publish(subject, b"{}", reply=aim, headers={"Nats-Msg-Id": f"aim-{at}"})
            await acme.flush(WAIT)
        except nats.errors.Error as error:
            print("      ", aim, "ends the connection:", error)
    await ask(audience, "$JS.API.STREAM.INFO.MAIL_REQUESTS")
    await asyncio.sleep(SILENCE)
    after = {name: await held(audience, name) for name in before}
    check(f"an answer aimed at the engine reaches nothing: {before} {after}",
          after["MAIL_REQUESTS"] >= before["MAIL_REQUESTS"] and after["MAIL_SIGNALS"] == before["MAIL_SIGNALS"]
          and after["MAIL_RENDERED"] == before["MAIL_RENDERED"])


async def operators(cluster):
    operator = await cluster.connect("operator")
    answer = await ask(operator, "$JS.API.STREAM.NAMES")
    check("an operator lists the streams", len(answer["streams"]) == 9)
    answer = await ask(operator, "$JS.API.STREAM.MSG.GET.MAIL_DEAD", {"seq": 1})
    check("an operator reads a dead letter", base64.b64decode(answer["message"]["data"]) == b"{}")
    answer = await ask(operator, "$JS.API.STREAM.MSG.DELETE.MAIL_DEAD", {"seq": 1})
    check("an operator drops it", answer.get("success") is True)
    check("an operator replays to where it came from", await may_publish(operator, "mail.v1.rendered.bulk"))
    check("an operator moves pause switches", await may_publish(operator, "mail.v1.control"))
    check("an operator does not play a product's events", not await may_publish(operator, "mail.v1.event.acme.production.email.sent"))
    await operator.close()


def health(cluster):
    """`postrider health` runs where the settings are, so as the user of that process. Of the bus it tells without a ledger."""
    postrider = os.environ.get("POSTRIDER_TEST_BINARY")
    for user in ("operator", "ingress", "engine_all") if postrider else ():
        seed = cluster.place / f"{user}.seed"
        seed.write_text(cluster.seeds[user])
        env = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(cluster.place / "ca.crt"), "POSTRIDER_NATS_CREDENTIALS": str(seed),
               "POSTRIDER_NATS_URL": ",".join(f"tls://127.0.0.1:{port}" for port in cluster.ports),
               "POSTRIDER_DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}
        said = subprocess.run([postrider, "--json", "health"], env=env, capture_output=True, text=True)
        checks = json.loads(said.stdout)["checks"] if said.stdout else []
        bus = [found["status"] for found in checks if found["id"] == "bus"]
        check(f"postrider health as {user} sees the streams: {bus} {said.stderr}", bus == ["ok"])


async def silent(_error):
    pass


async def strangers(cluster):
    async def is_refused(**options):
        try:
            client = await nats.connect(allow_reconnect=False, connect_timeout=3, error_cb=silent, **options)
            await client.close()
            return False
        except (nats.errors.Error, OSError, asyncio.TimeoutError):
            return True

    url = f"tls://127.0.0.1:{cluster.ports[0]}"
    seed, _ = new_key()
    check("nobody is refused", await is_refused(servers=url, tls=cluster.tls()))
    check("an unknown key is refused", await is_refused(servers=url, tls=cluster.tls(), nkeys_seed_str=seed))
    check("a client without TLS is refused", await is_refused(servers=f"nats://127.0.0.1:{cluster.ports[0]}", nkeys_seed_str=cluster.seeds["acme"]))


async def main():
    with tempfile.TemporaryDirectory(prefix="postrider-nats-") as place:
        cluster = Cluster(Path(place))
        cluster.start()
        try:
            async def up():
                client = await cluster.connect("operator")
                answer = await ask(client, "$JS.API.INFO")
                await client.close()
                return "error" not in answer
            await until(up, "three servers that agree")
            audience = await cluster.connect("audience")
            operator, engine_all = await cluster.connect("operator"), await cluster.connect("engine_all")
            await operator_makes_streams(operator, audience, engine_all)
            for client in (operator, engine_all):
                await client.close()
            ingress = await stages(cluster, audience)
            await products(cluster, audience, ingress)
            await operators(cluster)
            await asyncio.to_thread(health, cluster)
            await strangers(cluster)
            await ingress.close()
            await audience.close()
        except BaseException:
            for name in SERVERS:
                print(name, (Path(place) / f"{name}.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            cluster.stop()
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    # A connection that ends with TLS is remarked upon by asyncio.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    sys.exit(asyncio.run(main()))
