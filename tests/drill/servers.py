"""The servers under the installation: stopped, started again as they were, NATS also on a disk that is too small."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from product import http, until


def descendants(pid):
    """A process and all below it."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += descendants(int(child))
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


class Server:
    """A server that `postrider dev` started: it can be started again with the same command, as the same user."""

    def __init__(self, program, dev):
        ours = [pid for pid in descendants(dev) if self.program_of(pid).endswith(program)]
        self.name, self.pid, self.process = program, min(ours), None
        self.command = Path(f"/proc/{self.pid}/cmdline").read_text().rstrip("\0").split("\0")
        self.command[0] = self.program_of(self.pid)
        status = Path(f"/proc/{self.pid}").stat()
        self.owner = {} if os.getuid() == status.st_uid else {"user": status.st_uid, "group": status.st_gid, "extra_groups": []}
        text = Path(f"/proc/{self.pid}/environ").read_text()
        self.env = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)

    @staticmethod
    def program_of(pid):
        try:
            return os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return ""

    def is_up(self):
        return is_alive(self.pid)

    def stop(self, how=signal.SIGINT):
        if not self.is_up():
            return
        os.kill(self.pid, how)
        if self.process:
            self.process.wait(60)
        until(f"{self.name} to end", lambda: not self.is_up(), 60)

    def start(self):
        if self.is_up():
            return
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, cwd="/", env=self.env, **quiet, **self.owner)
        self.pid = self.process.pid


class Postgres(Server):
    def __init__(self, dev):
        super().__init__("/postgres", dev)


class Nats(Server):
    """Also read: its configuration says where it is."""

    def __init__(self, dev):
        super().__init__("/nats-server", dev)
        self.config = Path(self.command[self.command.index("--config") + 1])
        self.settings = json.loads(self.config.read_text())
        self.monitor = f"http://{self.settings['http']}"
        self.disk = None

    def start(self):
        super().start()
        until("NATS to be healthy", self.is_healthy, 60)

    def is_healthy(self):
        try:
            return http(f"{self.monitor}/healthz")["status"] == "ok"
        except OSError:
            return False

    def move_to_small_disk(self, place):
        """Moves the store to a file system of its own, which can be filled. Raises what the kernel says where nobody may mount."""
        self.stop()
        self.disk = SmallDisk(place)
        store = self.settings["jetstream"]["store_dir"]
        self.disk.run("cp", "--archive", f"{store}/.", str(place))
        self.settings["jetstream"]["store_dir"] = str(place)
        config = place.parent / "nats-small-disk.conf"
        config.write_text(json.dumps(self.settings))
        self.command[self.command.index("--config") + 1] = str(config)
        self.command = self.disk.inside() + self.command
        self.start()

    def close(self):
        self.stop()
        if self.disk:
            self.disk.close()


class SmallDisk:
    """A small file system, mounted where only its own processes see it: no rights are needed where users may have name spaces."""

    SIZE = "48m"

    def __init__(self, place):
        place.mkdir()
        mount = f"mount -t tmpfs -o size={self.SIZE} drill '{place}' && echo mounted && exec sleep infinity"
        self.place, said = place, ""
        for self.rights in ([], ["--user", "--map-root-user"]):
            command = ["unshare", *self.rights, "--mount", "sh", "-c", mount]
            self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if self.holder.stdout.readline() == "mounted\n":
                return
            said = self.holder.communicate()[1].strip()
        raise PermissionError(said)

    def inside(self):
        user = ["--user", "--preserve-credentials"] if self.rights else []
        return ["nsenter", "--target", str(self.holder.pid), *user, "--mount", "--"]

    def run(self, *command, check=True):
        return subprocess.run([*self.inside(), *command], check=check, capture_output=True, text=True)

    def fill(self):
        """Somebody else's file takes all that is left."""
        self.run("dd", "if=/dev/zero", f"of={self.place}/somebody-elses", "bs=64k", check=False)

    def enlarge(self):
        self.run("mount", "-o", "remount,size=512m", str(self.place))

    def close(self):
        self.holder.kill()
        self.holder.wait()


class NatsClient:
    """As much of the protocol as it takes to publish, and to ask."""

    def __init__(self, url):
        host, port = url.removeprefix("nats://").split(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.lines = self.socket.makefile("rb")
        self.lines.readline()
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')

    def publish(self, subject, body):
        """Published and stored: JetStream says so."""
        answer = self.ask(subject, body)
        assert "error" not in answer, answer
        return answer

    def ask(self, subject, body):
        inbox, body = f"_INBOX.drill.{time.monotonic_ns()}", json.dumps(body).encode() if body != "" else b""
        head = f"SUB {inbox} 1\r\nUNSUB 1 1\r\nPUB {subject} {inbox} {len(body)}\r\n"
        self.socket.sendall(head.encode() + body + b"\r\n")
        while line := self.lines.readline():
            if line.startswith(b"MSG"):
                text = self.lines.read(int(line.split()[-1]) + 2)
                return json.loads(text)
            if line.startswith(b"HMSG"):
                raise RuntimeError(f"nobody answers to {subject}")
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
        raise ConnectionError("NATS hung up")

    def limit_stream(self, name, max_bytes):
        config = self.ask(f"$JS.API.STREAM.INFO.{name}", "")["config"]
        answer = self.ask(f"$JS.API.STREAM.UPDATE.{name}", {**config, "max_bytes": max_bytes})
        assert "error" not in answer, answer
        return config["max_bytes"]


def have_name_spaces():
    return all(shutil.which(program) for program in ("unshare", "nsenter"))
