#!/usr/bin/env python3
"""The drill of an SRE: plays faults against a whole installation and holds alerts, dashboards and runbooks to what they promise.

    tests/drill/drill.py                  every fault, about eight minutes
    tests/drill/drill.py --short          two of them, about a minute; this is what ./ops/test runs
    tests/drill/drill.py --only RelayAway

The engine runs as in production, a process for each stage, on real servers; a real Prometheus scrapes it with the rules of
ops/prometheus, on a clock that runs faster. For each fault: the alert fires, a panel of ops/grafana shows it, the commands that its
runbook marks as the fix are run as they stand there, the alert ends, and every mail of that time is accounted for.

Needs Linux, python3 and Rust; Prometheus and its exporter of Postgres are taken from PATH, else out of Debian's packages.
Ends with 0 when everything held.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import faults
from installation import Installation
from product import until
from runbook import follow
from watch import Prometheus

TOP = Path(__file__).resolve().parents[2]
# More than any alert of the drill takes, on a machine that has other work.
FIRES_WITHIN, ENDS_WITHIN = 180, 180
COLUMNS = ("fault", "alert", "fires s", "ends s", "runbook", "mails", "lost", "twice", "in doubt")


def binary():
    """The program: what POSTRIDER_TEST_BINARY names, else the workspace's, brought up to date."""
    if given := os.environ.get("POSTRIDER_TEST_BINARY"):
        return given
    env = {"SQLX_OFFLINE": "true", **os.environ}
    subprocess.run(["cargo", "build", "--quiet", "--package", "postrider"], cwd=TOP, env=env, check=True)
    return TOP / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/postrider"


def play(fault, place, prometheus):
    """One fault from its beginning to its end; answers its line of the table."""
    quiet = lambda: not prometheus.alert(fault.alert, fault.labels)
    until(f"{fault.alert} to be silent before anything happened", quiet, ENDS_WITHIN)
    fault.strike()
    struck, seen = time.monotonic(), []

    def fires():
        fault.goes_on()
        alert = prometheus.alert(fault.alert, fault.labels)
        if alert and (not seen or seen[-1] != alert["state"]):
            seen.append(alert["state"])
        return alert and alert["state"] == "firing" and alert

    alert = until(f"{fault.alert} to fire", fires, FIRES_WITHIN)
    fired = time.monotonic()
    print(f"  {fault.alert} is {' → '.join(seen)} after {fired - struck:.0f} s: {alert['annotations']['summary']}")

    series = until("the panel to tell", lambda: [shown for shown in [prometheus.panel(*fault.panel)] if fault.tells(shown)], 60)[0]
    print(f"  the panel {' / '.join(fault.panel)} shows {said(series)}")

    page = alert["annotations"]["runbook_url"]
    known = {**alert["labels"], **fault.people_act()}
    begun = time.monotonic()
    commands = follow(page, "fix", fault.alert, known, place.operate)
    assert commands, f"{page} marks no block as the fix for {fault.alert}"
    print("".join(f"  $ {line}\n" for line in commands), end="", flush=True)
    until(f"{fault.alert} to end", quiet, ENDS_WITHIN)
    ended = time.monotonic()
    print("".join(f"  $ {line}\n" for line in follow(page, "afterwards", fault.alert, known, place.operate)), end="")
    fault.clear()
    posted, lost, twice, doubt = fault.mail.books()
    print(f"  it is over after {ended - begun:.0f} s; {posted} mails, {lost} lost, {twice} twice, {doubt} in doubt", flush=True)
    assert lost == 0 and twice == 0, f"{lost} lost, {twice} twice"
    return [fault.name, fault.alert, f"{fired - struck:.0f}", f"{ended - begun:.0f}", Path(page).name, posted, lost, twice, doubt]


def said(series):
    shown = [f"{labels_said(labels)}{value:.4g}" for labels, value in series if value == value]
    return ", ".join(shown[:4]) + (" …" if len(shown) > 4 else "") if shown else "nothing"


def labels_said(labels):
    kept = {name: value for name, value in labels.items() if name not in ("__name__", "instance", "job")}
    return f"{' '.join(kept.values())} " if kept else ""


def print_table(lines):
    lines = [COLUMNS, *lines]
    widths = [max(len(str(line[at])) for line in lines) for at in range(len(COLUMNS))]
    print()
    for line in lines:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(line, widths)).rstrip())


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [kind.__name__ for kind in faults.ALL]
    parser.add_argument("--short", action="store_true", help="only " + " and ".join(kind.__name__ for kind in faults.SHORT))
    parser.add_argument("--only", nargs="+", choices=names, metavar="FAULT", help=", ".join(names))
    parser.add_argument("--factor", type=float, default=30, help="how much faster time runs for the rules (default: 30)")
    parser.add_argument("--keep", action="store_true", help="keep logs and Prometheus's data")
    return parser.parse_args()


def main():
    options = parse()
    chosen = faults.SHORT if options.short else faults.ALL
    chosen = [kind for kind in faults.ALL if kind.__name__ in options.only] if options.only else chosen
    work = Path(tempfile.mkdtemp(prefix="postrider-drill-"))
    # A copy: a build beside the drill must not change what it starts.
    program = shutil.copy(binary(), work / "postrider-program")
    begun, lines, failed, place, prometheus = time.monotonic(), [], [], None, None
    print(f"For the rules time runs {options.factor:g} times faster; thresholds and expressions are the shipped ones.", flush=True)
    try:
        place = Installation(program, work)
        prometheus = Prometheus(place, options.factor)
        print(f"The installation and Prometheus run after {time.monotonic() - begun:.0f} s. Logs are in {work}.")
        for kind in chosen:
            print(f"\n{kind.name}: {kind.__doc__}", flush=True)
            fault = kind(place)
            try:
                lines.append(play(fault, place, prometheus))
            except faults.Skipped as reason:
                print(f"  NOT PLAYED: {reason}")
                lines.append([kind.name, kind.alert, "not played", *[""] * 6])
            except Exception:  # noqa: BLE001: the others are played all the same, and the end says so
                traceback.print_exc()
                failed.append(kind.__name__)
                lines.append([kind.name, kind.alert, "FAILED", *[""] * 6])
                with contextlib.suppress(Exception):
                    fault.clear()
                place.restore()
    finally:
        for running in (prometheus, place):
            if running:
                running.close()
        if not (options.keep or failed or sys.exc_info()[0]):
            shutil.rmtree(work, ignore_errors=True)
    print_table(lines)
    print(f"\n{len(lines) - len(failed)} of {len(chosen)} in {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
