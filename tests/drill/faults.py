"""The faults of the drill: how each comes about, what must tell of it, and what only a person outside can do about it."""

import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from product import Mail, http, until
from servers import have_name_spaces


class Skipped(Exception):
    """The fault cannot be played on this machine; says why."""


class Fault:
    """One fault. `alert` must fire with `labels`, and `panel` (dashboard and title) must show it by a series that `tells`."""

    name = alert = None
    labels = {}
    panel = None
    # Whether a series of the panel says what is wrong.
    shows = {}
    least = 1.0

    def __init__(self, installation):
        self.place = installation
        relays = [installation.relay.inbox, installation.other_relay.inbox]
        self.mail = Mail(installation.product, relays, type(self).__name__.lower())

    def strike(self):
        """Makes it happen, with mail under way."""
        raise NotImplementedError

    def goes_on(self):
        """Called again and again until the alert fires."""

    def people_act(self):
        """What no command of ours can do; answers what it took to fill in the runbook's words."""
        return {}

    def clear(self):
        """Puts back what the fix left otherwise than before."""

    def tells(self, series):
        return any(self.shows.items() <= labels.items() and value >= self.least for labels, value in series)


class StageStopped(Fault):
    """Rendering is killed in the middle of a campaign."""

    name, alert, labels = "a stage is killed", "ProcessDown", {"service": "rendering"}
    panel = ("overview", "Away")

    def strike(self):
        self.mail.transactional(5)
        self.mail.campaign(400, per_minute=6_000)
        until("the campaign to be under way", lambda: self.mail.arrived() > 50)
        self.place.stop("rendering", signal.SIGKILL)
        self.mail.transactional(5)


class MessagePoisoned(Fault):
    """Somebody publishes what no stage can read, into the middle of a campaign."""

    name, alert, labels = "a message is poison", "DeadLetters", {"stage": "compliance"}
    panel, shows, least = ("overview", "Dead letters"), {"stage": "compliance"}, 0.5

    def strike(self):
        self.mail.campaign(300, per_minute=6_000)
        until("the campaign to be under way", lambda: self.mail.arrived() > 20)
        self.place.bus().publish("mail.v1.resolved.bulk", {"poison": True})


class RelaySlow(Fault):
    """The relay takes six seconds for each mail: transactional mail is late."""

    # The page of the shortest window: the tickets of the longer ones end when those are clean.
    name, alert, labels = "the relay is slow", "TransactionalSlow", {"window": "1h"}
    panel, least = ("overview", "Transactional late, 1 h"), 0.144

    def strike(self):
        self.place.relay.answer([{"match": "all", "stage": "dot", "delay_ms": 6_000}])
        self.mail.transactional(16)
        self.last = time.monotonic()

    def goes_on(self):
        """One a second: less than sixteen connections carry even so."""
        if time.monotonic() - self.last > 1:
            self.last = time.monotonic()
            self.mail.transactional(1)

    def people_act(self):
        return {"another relay": self.place.other_relay.url}

    def clear(self):
        self.place.relay.answer([])
        self.place.up("delivery", {})


class RelayAway(Fault):
    """Nothing listens where the relay was, and its connections are cut."""

    name, alert = "the relay is away", "RelayUnreachable"
    panel, shows, least = ("overview", "Answers of receivers"), {"class": "unreachable"}, 0.001

    def strike(self):
        self.mail.campaign(400, per_minute=6_000)
        until("the campaign to be under way", lambda: self.mail.arrived() > 50)
        self.place.relay.gate.shut()

    def people_act(self):
        return {"another relay": self.place.other_relay.url}

    def clear(self):
        self.place.relay.gate.open()
        self.place.up("delivery", {})


class PostgresAway(Fault):
    """Postgres is stopped in the middle of a campaign."""

    name, alert = "Postgres is away", "PostgresDown"
    panel = ("platform", "Postgres")

    def strike(self):
        self.mail.campaign(400, per_minute=6_000)
        until("the campaign to be under way", lambda: self.mail.arrived() > 50)
        self.place.postgres.stop()

    def tells(self, series):
        return series == [] or series[0][1] == 0


class NatsDiskFull(Fault):
    """The disk under NATS is full: the server stays up, and a stream it could not write takes nothing more."""

    name, alert = "NATS's disk is full", "NatsDown"
    panel = ("platform", "JetStream")

    def strike(self):
        if not have_name_spaces():
            raise Skipped("unshare and nsenter (util-linux) are not here")
        if not self.place.nats.disk:
            try:
                self.place.nats.move_to_small_disk(self.place.work / "nats-disk")
            except PermissionError as error:
                self.place.nats.start()
                raise Skipped(f"nobody may mount here: {error}") from None
        self.mail.campaign(300, per_minute=3_000)
        until("the campaign to be under way", lambda: self.mail.arrived() > 20)
        self.place.nats.disk.fill()

    def goes_on(self):
        if len(self.mail.sends) < 5:
            self.mail.transactional(1)

    def people_act(self):
        self.place.nats.disk.enlarge()
        return {}

    def tells(self, series):
        return series == [] or series[0][1] == 0


class StreamFilled(Fault):
    """Nobody takes in opens, and their stream fills. It may hold less than usual, so that minutes are enough."""

    name, alert, labels = "a stream fills", "StreamNearlyFull", {"stream_name": "MAIL_SIGNALS"}
    panel, shows, least = ("platform", "Bytes in streams"), {"stream_name": "MAIL_SIGNALS"}, 100_000
    BYTES = 1024 * 1024

    def strike(self):
        [reader] = self.mail.campaign(1)
        until("the mail", lambda: self.mail.arrived() == 1)
        self.place.stop("engagement")
        self.before = self.place.bus().limit_stream("MAIL_SIGNALS", self.BYTES)
        found = http(f"{self.place.relay.inbox}/messages?to={reader}")["messages"][0]
        html = http(f"{self.place.relay.inbox}/messages/{found['id']}")["html"]
        self.pixel = next(part for part in html.split('"') if "/t/o/" in part)
        self.opens = ThreadPoolExecutor(8)

    def goes_on(self):
        """Until three quarters are full: what is lost at the brim is another alert."""
        stored = self.place.bus().ask("$JS.API.STREAM.INFO.MAIL_SIGNALS", "")["state"]["bytes"]
        if stored < 0.75 * self.BYTES:
            list(self.opens.map(lambda _: urllib.request.urlopen(self.pixel).read(), range(200)))

    def clear(self):
        self.opens.shutdown()
        self.place.bus().limit_stream("MAIL_SIGNALS", self.before)


class StageForgotten(Fault):
    """Somebody pauses compliance and goes home."""

    name, alert, labels = "a stage stays paused", "StagePaused", {"stage": "compliance"}
    panel, shows = ("overview", "Waiting"), {"stage": "compliance"}

    def strike(self):
        self.mail.campaign(300)
        self.place.operate("postrider pause stage compliance --reason 'to have a look'")
        self.mail.transactional(5)


class DomainDefers(Fault):
    """One large receiver says "later" to everything, beside one that takes all."""

    name, alert = "a receiver defers everything", "DeferralStorm"
    panel, least = ("deliverability", "Put us off"), 0.2

    def strike(self):
        rule = {"match": {"domain": "slow.example"}, "stage": "rcpt", "reply": "451 4.7.1 Too much mail, try later"}
        self.place.relay.answer([rule])
        self.mail.campaign(600, domains=("slow.example", "example.com"))

    def people_act(self):
        """The receiver is well again after a while."""
        self.place.relay.answer([])
        return {"campaign id": self.mail.campaigns[0]}


ALL = [StageStopped, MessagePoisoned, RelaySlow, RelayAway, PostgresAway, NatsDiskFull, StreamFilled]
ALL += [StageForgotten, DomainDefers]
# What ./ops/test plays: a minute.
SHORT = [StageStopped, MessagePoisoned]
