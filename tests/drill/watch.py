"""A real Prometheus over the installation, with the shipped rules; panels of the shipped dashboards, asked as Grafana asks them.

Time runs faster for the rules: `for`, windows, offsets and intervals are divided by a factor. Expressions and thresholds stay as
they are.
"""

import contextlib
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gate import free_port
from product import http, until

TOP = Path(__file__).resolve().parents[2]
PACKAGES = TOP / "target/drill/packages"
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Seconds between two samples; a machine with other work answers late. A rate wants several of them.
SCRAPE, SHORTEST_WINDOW = 2, 8.0


def program(name, package):
    """A program from PATH, else out of Debian's package, unpacked beside the build: nothing is installed."""
    if found := shutil.which(name):
        return found
    place = PACKAGES / package
    found = place / "usr/bin" / name
    if not found.exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise SystemExit(f"the drill needs {name}: Debian's package {package}, or https://prometheus.io/download")
        place.mkdir(parents=True, exist_ok=True)
        print(f"fetching Debian's {package} …", flush=True)
        fetched = subprocess.run(["apt-get", "download", package], cwd=place, capture_output=True, text=True)
        archives = list(place.glob("*.deb"))
        if fetched.returncode or not archives:
            raise SystemExit(f"the drill needs {name}, and Debian's package {package} cannot be fetched: {fetched.stderr}")
        subprocess.run(["dpkg-deb", "--extract", archives[0].name, "."], cwd=place, check=True)
    return str(found)


def seconds(duration):
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdw])", duration))


class Clock:
    """How much faster time runs for the rules."""

    DURATION = r"(?:\d+(?:ms|[smhdw]))+"

    def __init__(self, factor):
        self.factor = factor

    def faster(self, duration, least=0.0):
        return f"{max(round(seconds(duration) / self.factor * 1000), round(least * 1000))}ms"

    def expression(self, text):
        """An expression whose windows and offsets are shorter."""
        window = rf"\[({self.DURATION})(?::({self.DURATION})?)?\]"

        def shorter(match):
            step = f":{self.faster(match[2], 1)}" if match[2] else ""
            return f"[{self.faster(match[1], SHORTEST_WINDOW)}{step}]"

        text = re.sub(window, shorter, text)
        return re.sub(rf"\boffset ({self.DURATION})", lambda match: f"offset {self.faster(match[1], SHORTEST_WINDOW)}", text)

    def rules(self, text):
        """A file of rules, faster: comments and all else as they are."""
        text = re.sub(rf"^(\s+for:) ({self.DURATION})$", lambda match: f"{match[1]} {self.faster(match[2])}", text, flags=re.M)
        text = re.sub(rf"^(\s+interval:) {self.DURATION}$", r"\1 1s", text, flags=re.M)
        return self.expression(text)


class Prometheus:
    def __init__(self, installation, factor):
        self.clock, self.work = Clock(factor), installation.work / "prometheus"
        self.work.mkdir()
        self.port, postgres_port, self.children = free_port(), free_port(), []
        rules = self.work / "rules"
        rules.mkdir()
        for path in sorted((TOP / "ops/prometheus/rules").glob("*.yml")):
            (rules / path.name).write_text(self.clock.rules(path.read_text()))
        bridge = NatsMetrics(installation.nats.monitor)
        jobs = [("postrider", port, {"service": name}) for name, port in installation.ports.items()]
        jobs += [("nats", bridge.port, {}), ("postgres", postgres_port, {}), ("prometheus", self.port, {})]
        config = {
            "global": {"scrape_interval": f"{SCRAPE}s", "scrape_timeout": f"{SCRAPE}s", "evaluation_interval": "1s"},
            "rule_files": ["rules/*.yml"],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}"], "labels": labels} for of, port, labels in jobs if of == job
                    ],
                }
                for job in dict.fromkeys(name for name, _, _ in jobs)
            ],
        }
        # JSON is YAML, too.
        (self.work / "prometheus.yml").write_text(json.dumps(config, indent=1))
        url = installation.facts["database_url"]
        exporter = program("prometheus-postgres-exporter", "prometheus-postgres-exporter")
        source = {"DATA_SOURCE_NAME": f"{url}{'&' if '?' in url else '?'}sslmode=disable"}
        self.spawn("postgres-exporter", [exporter, f"--web.listen-address=127.0.0.1:{postgres_port}"], source)
        prometheus = program("prometheus", "prometheus")
        where = [f"--config.file={self.work}/prometheus.yml", f"--storage.tsdb.path={self.work}/data"]
        self.spawn("prometheus", [prometheus, *where, f"--web.listen-address=127.0.0.1:{self.port}"], {})
        until("Prometheus to watch every process", self.sees_everything, 60)

    def spawn(self, name, command, env):
        log = (self.work / f"{name}.log").open("ab")
        self.children.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def sees_everything(self):
        try:
            down = [found for found in self.ask("up") if found["value"][1] != "1"]
            return not down and len(self.ask('up{job="postrider"}')) == 9 and self.ask("pg_up == 1")
        except OSError:
            return False

    def api(self, path, **parameters):
        return http(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")["data"]

    def ask(self, expression):
        return self.api("query", query=expression)["result"]

    def alert(self, name, labels):
        """The state of an alert whose labels are these and others: None, pending or firing; with its labels."""
        found = [
            alert
            for alert in self.api("alerts")["alerts"]
            if alert["labels"]["alertname"] == name and labels.items() <= alert["labels"].items()
        ]
        # Of several, such as those of several windows, the one that is furthest.
        return min(found, key=lambda alert: alert["state"] != "firing", default=None)

    def panel(self, dashboard, title):
        """What a panel shows now: series with their values."""
        found = json.loads((TOP / f"ops/grafana/dashboards/{dashboard}.json").read_text())
        panels = [panel for panel in found["panels"] if panel["title"] == title and panel.get("targets")]
        if len(panels) != 1:
            raise LookupError(f"dashboard {dashboard} has {len(panels)} panels {title!r}")
        series = []
        for target in panels[0]["targets"]:
            # Grafana's choice "All".
            expression = re.sub(r"\$\w+", ".*", target["expr"])
            series += self.ask(self.clock.expression(expression))
        return [(one["metric"], float(one["value"][1])) for one in series]

    def close(self):
        for child in self.children:
            child.terminate()
            child.wait(30)


class NatsMetrics:
    """Stands in for prometheus-nats-exporter, which Debian has no package of: the metrics that our rules and dashboards use, under
    its names, read from NATS's own monitoring. Like it, it has nothing to say of a server that does not answer."""

    def __init__(self, monitor):
        self.monitor = monitor
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = metrics.read().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def read(self):
        try:
            general = http(f"{self.monitor}/varz", timeout=1)
            stored = http(f"{self.monitor}/jsz?accounts=true&streams=true", timeout=1)
        except OSError:
            return ""
        server = f'{{server_name="{general["server_name"]}"}}'
        lines = [f"jetstream_server_jetstream_disabled{server} {int(stored.get('disabled', False))}"]
        lines.append(f'gnatsd_healthz_status{{server_id="{general["server_id"]}"}} {int(not self.is_well())}')
        if "config" in stored:
            lines.append(f"jetstream_server_total_message_bytes{server} {stored.get('bytes', 0)}")
            lines.append(f"jetstream_server_max_storage{server} {stored['config'].get('max_storage', 0)}")
        for account in stored.get("account_details") or []:
            for stream in account.get("stream_detail") or []:
                labels = f'{{stream_name="{stream["name"]}"}}'
                lines.append(f"jetstream_stream_total_bytes{labels} {stream['state']['bytes']}")
                lines.append(f"jetstream_stream_total_messages{labels} {stream['state']['messages']}")
        lines += [f"gnatsd_varz_{name}{server} {general[name]}" for name in ("connections", "in_msgs", "out_msgs", "mem")]
        return "\n".join(lines) + "\n"

    def is_well(self):
        try:
            return http(f"{self.monitor}/healthz", timeout=1)["status"] == "ok"
        except OSError:
            return False
