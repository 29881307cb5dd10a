"""A whole installation, each stage in a process of its own, and `docker compose` for it."""

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

from gate import Gate, free_port
from product import Product, http, until
from servers import Nats, NatsClient, Postgres

STAGES = ["audience", "compliance", "rendering", "delivery", "engagement", "attribution", "webhooks", "sequencing"]
# Short times, so that a drill is over in minutes: nothing else differs from the defaults.
HASTE = {
    "POSTRIDER_AUDIENCE_REANNOUNCE": "5s",
    "POSTRIDER_SMTP_CONNECTIONS": "16",
}


class Relay:
    """A mail sink behind a gate: away when the gate is shut, and what it counted is kept."""

    def __init__(self, run, name):
        self.process, addresses = run(name, ["sink"])
        host, port = addresses["smtp_addr"].split(":")
        self.gate = Gate((host, int(port)))
        self.inbox = f"http://{addresses['http_addr']}"
        self.url = f"smtp://{self.gate.address}"

    def answer(self, rules):
        http(f"{self.inbox}/rules", rules, "PUT")

    def accepted(self):
        return http(f"{self.inbox}/stats")["accepted"]


class Installation:
    def __init__(self, binary, work):
        self.work, self.binary, self.processes = work, binary, {}
        self.lock = threading.RLock()
        self.relay, self.other_relay = Relay(self.run, "relay"), Relay(self.run, "other-relay")
        ready = work / "ready.json"
        dev = ["dev", "--only-servers", "--ephemeral", "--ready-file", str(ready), "--rate-limit-per-minute", "0"]
        self.dev, _ = self.run("dev", [*dev, "--smtp-url", self.relay.url], wait=False)
        self.facts = until("the servers to start", lambda: self.read(ready, self.dev), 180)
        self.env = {**self.facts["env"], **HASTE, "POSTRIDER_SMTP_URL": self.relay.url}
        self.postgres, self.nats = Postgres(self.dev.pid), Nats(self.dev.pid)
        self.product = Product(self.facts)
        self.ports = {name: free_port() for name in ["ingress", *STAGES]}
        for name in self.ports:
            self.start(name)
        self.serve_compose()

    def run(self, name, arguments, env=None, wait=True):
        """Starts a process of the binary; answers it, and where it listens."""
        addresses = self.work / f"{name}.json"
        addresses.unlink(missing_ok=True)
        log = (self.work / f"{name}.log").open("ab")
        env = {**os.environ, **(env or {}), "POSTRIDER_ADDRESSES_FILE": str(addresses)}
        process = subprocess.Popen([self.binary, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return process, until(f"{name} to listen", lambda: self.read(addresses, process)) if wait else None

    def read(self, path, process):
        assert process.poll() is None, f"a process ended by itself: see {self.work}"
        return json.loads(path.read_text()) if path.exists() else None

    def start(self, name, settings=None):
        """Starts the ingress or a stage, with settings beside the usual ones."""
        env = {**self.env, **(settings or {}), "POSTRIDER_ADMIN_ADDR": f"127.0.0.1:{self.ports[name]}"}
        self.processes[name] = (self.run(name, ["ingress"] if name == "ingress" else ["stage", name], env)[0], settings or {})

    def stop(self, name, how=signal.SIGTERM):
        process, _ = self.processes.pop(name)
        process.send_signal(how)
        process.wait(60)

    def bus(self):
        return NatsClient(self.facts["nats_url"])

    # What `docker compose` does

    def compose(self, arguments, settings):
        """`compose up --detach <service>…` and `compose restart <service>…`."""
        match [word for word in arguments if not word.startswith("--")]:
            case ["compose", "up", *services] if services:
                act = self.up
            case ["compose", "restart", *services] if services:
                act = self.restart
            case _:
                raise ValueError(f"the drill has no `docker {' '.join(arguments)}`")
        with self.lock:
            for service in services:
                act(service, settings)
        return f"{', '.join(services)} started"

    def up(self, service, settings):
        """As compose does: what does not run is started, what runs with other settings is replaced."""
        server = {"nats": self.nats, "postgres": self.postgres}.get(service)
        if server:
            return server.start()
        # Of the operator's shell only what differs from the installation's settings counts.
        changed = {name: value for name, value in settings.items() if self.env.get(name, value) != value}
        process, used = self.processes.get(service, (None, None))
        if process and process.poll() is None and used == changed:
            return None
        if process:
            self.stop(service)
        return self.start(service, changed)

    def restart(self, service, _):
        server = {"nats": self.nats, "postgres": self.postgres}.get(service)
        if server:
            server.stop()
            return server.start()
        _, used = self.processes[service]
        self.stop(service)
        return self.start(service, used)

    def restore(self):
        """Everything as it was at the start, whatever a fault left."""
        for relay in (self.relay, self.other_relay):
            relay.gate.shut()
            relay.gate.open()
            relay.answer([])
        for service in ("postgres", "nats", *self.ports):
            self.up(service, {})

    def serve_compose(self):
        """Runbooks say `docker compose`: a program of that name stands before any other on their PATH."""
        programs = self.work / "bin"
        programs.mkdir()
        (programs / "postrider").symlink_to(self.binary)
        (programs / "docker").symlink_to(Path(__file__).with_name("compose.py"))
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(self.work / "drill.socket"))
        door.listen()
        threading.Thread(target=self.listen, args=(door,), daemon=True).start()

    def listen(self, door):
        while True:
            caller, _ = door.accept()
            with caller:
                asked = json.loads(caller.makefile().readline())
                try:
                    answer = {"ok": True, "said": self.compose(asked["arguments"], asked["settings"])}
                except Exception as error:  # noqa: BLE001: whoever asked is told
                    answer = {"ok": False, "said": f"{type(error).__name__}: {error}"}
                caller.sendall(json.dumps(answer).encode() + b"\n")

    def shell(self):
        """The environment of an operator's shell."""
        path = f"{self.work / 'bin'}:{os.environ['PATH']}"
        settings = {name: value for name, value in self.env.items() if name not in HASTE}
        return {**os.environ, **settings, "PATH": path, "DRILL_SOCKET": str(self.work / "drill.socket")}

    def operate(self, commands):
        """What an operator types."""
        done = subprocess.run(["bash", "-euc", commands], env=self.shell(), text=True, capture_output=True, timeout=180)
        if done.returncode:
            raise RuntimeError(f"{commands}\n{done.stdout}{done.stderr}")

    def close(self):
        for name in list(self.processes):
            self.stop(name, signal.SIGKILL)
        self.nats.close()
        self.postgres.stop()
        for process in (self.dev, self.relay.process, self.other_relay.process):
            process.send_signal(signal.SIGINT)
            process.wait(60)
