#!/usr/bin/env python3
"""Holds dashboards, alerts, their tests and runbooks against the metrics there are.

Ours stand in ops/metrics.md, with their labels; others in ops/prometheus/exporters.txt. Needs PyYAML (ops/prometheus/check finds it).
With --as-rules it prints the dashboards' queries as rules instead, for promtool to parse.
"""

import json
import re
import sys
from pathlib import Path

import yaml

OPS = Path(__file__).resolve().parent.parent
# What Prometheus and its service discovery add to every series.
OF_EVERY_SERIES = {"job", "instance", "service", "le"}
# Words of PromQL that look like metrics once functions (a word before a bracket) are gone.
WORDS = {"and", "or", "unless", "by", "on", "without", "ignoring", "group_left", "group_right", "offset", "bool", "inf", "nan"}
# Labels with few values each: what a dashboard may offer to choose from.
CHOOSABLE = {"stage", "lane", "service", "route", "datname", "stream_name"}

faults = []


def fault(place, text):
    faults.append(f"{place}: {text}")


def our_metrics():
    """Name to labels. Histograms are known by the names their parts have."""
    found = {}
    for section in (OPS / "metrics.md").read_text().split("\n## ")[1:]:
        kind, _, body = section.partition("\n")
        for name, labels in re.findall(r"^\| `(\w+)` \|.*\|.*\|(.*)\|.*\|$", body, re.M):
            labels = set(re.findall(r"`(\w+)`:", labels))
            parts = [f"{name}_bucket", f"{name}_sum", f"{name}_count"] if kind == "Distributions" else [name]
            for part in parts:
                found[part] = labels
    return found


def others():
    lines = (OPS / "prometheus/exporters.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


def rules():
    """Every rule, with its file."""
    for path in sorted((OPS / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path.name, rule


def check_expression(place, expression, ours, known):
    """Every name is a metric, and every label of ours one that it has."""
    used = set()
    for name, braces in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*(?:\{[^}]*\}[^}]*)*)\}", expression):
        if name in ours:
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", braces))
            for label in labels - ours[name] - OF_EVERY_SERIES:
                fault(place, f"{name} has no label {label}")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", " ", bare)
    groupings = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)", bare)
    bare = re.sub(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"offset\s+\w+", " ", bare)
    for name in re.findall(r"(?<![\w.:$])([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare):
        if name in WORDS:
            continue
        if name not in ours and name not in known:
            fault(place, f"there is no metric {name}")
        used.add(name)
    if not used:
        fault(place, f"no metric in {expression}")
    if used and used <= set(ours):
        have = set.union(*(ours[name] for name in used)) | OF_EVERY_SERIES
        asked = {label for grouping in groupings for label in re.findall(r"\w+", grouping)}
        # label_replace makes labels of its own.
        if "label_replace" not in expression:
            for label in asked - have:
                fault(place, f"grouped by {label}, which none of {', '.join(sorted(used))} has")
    return used


def check_alerts(ours, known):
    names, books, used = set(), {}, set()
    for file, rule in rules():
        place = f"{file} {rule.get('alert') or rule.get('record')}"
        used |= check_expression(place, rule["expr"], ours, known)
        if "alert" not in rule:
            continue
        names.add(rule["alert"])
        if rule["labels"].get("severity") not in ("page", "ticket"):
            fault(place, "severity is page or ticket")
        notes = rule["annotations"]
        for wanted in ("summary", "description", "runbook_url"):
            if not notes.get(wanted):
                fault(place, f"no {wanted}")
        book = OPS.parent / notes.get("runbook_url", "-")
        books.setdefault(book, set()).add(rule["alert"])
        if not book.is_file():
            fault(place, f"there is no {book.name}")
        elif rule["alert"] not in book.read_text():
            fault(place, f"{book.name} does not say that it is for it")
    for book in sorted((OPS / "runbooks").glob("*.md")):
        if book not in books:
            fault(book.name, "no alert leads here")
    cases = [
        case["name"]
        for path in (OPS / "prometheus/tests").glob("*.yml")
        for case in yaml.safe_load(path.read_text())["tests"]
    ]
    for name in sorted(names):
        for what in ("fires", "is silent"):
            if not any(case.startswith(f"{name} {what}") for case in cases):
                fault(name, f"no test in which it {what}")
    return used


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_dashboards(ours, known):
    uids, used = set(), set()
    for path in sorted((OPS / "grafana/dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        uid = dashboard.get("uid")
        if not uid or uid in uids or uid != f"postrider-{path.stem}":
            fault(path.name, "its uid is postrider-<name of the file>")
        uids.add(uid)
        for variable in dashboard.get("templating", {}).get("list", []):
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("query", ""))
            if not asked or asked[2] not in CHOOSABLE:
                fault(path.name, f"variable {variable['name']}: not the values of a label with few of them")
            elif asked[1] not in ours and asked[1] not in known:
                fault(path.name, f"variable {variable['name']}: there is no metric {asked[1]}")
        ids = [panel["id"] for panel in panels_of(dashboard)]
        if len(ids) != len(set(ids)):
            fault(path.name, "two panels have one id")
        for panel in panels_of(dashboard):
            place = f"{path.name} {panel['title']!r}"
            if panel["type"] in ("row", "text"):
                continue
            if not panel.get("targets"):
                fault(place, "no query")
            if not panel["fieldConfig"]["defaults"].get("unit"):
                fault(place, "no unit")
            if not panel.get("description"):
                fault(place, "no description")
            for target in panel.get("targets", []):
                if target["datasource"]["uid"] != "prometheus":
                    fault(place, "another data source than the provisioned one")
                used |= check_expression(place, target["expr"], ours, known)
    return used


def print_as_rules():
    """Variables stand in quotes, where any text is good."""
    found = []
    for path in sorted((OPS / "grafana/dashboards").glob("*.json")):
        for panel in panels_of(json.loads(path.read_text())):
            found += [target["expr"] for target in panel.get("targets", [])]
    rules = [{"record": f"panel:{at}", "expr": expression} for at, expression in enumerate(found)]
    yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}, sys.stdout)


def main():
    if sys.argv[1:] == ["--as-rules"]:
        print_as_rules()
        return 0
    ours = our_metrics()
    if len(ours) < 20:
        fault("metrics.md", "the list of metrics could not be read")
    recorded = {rule["record"] for _, rule in rules() if "record" in rule}
    foreign = others()
    known = foreign | recorded
    used = check_alerts(ours, known) | check_dashboards(ours, known)
    for name in sorted(foreign - used):
        fault("exporters.txt", f"nobody uses {name}")
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    for name in sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in ours} - shown):
        # Not a fault: a new metric is there before somebody needs to see it.
        print(f"neither dashboard nor alert uses {name}")
    for line in faults:
        print(line, file=sys.stderr)
    if faults:
        return 1
    print(f"{len(used)} metrics in use, all known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
