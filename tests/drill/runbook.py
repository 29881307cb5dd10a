"""Runbooks as they are followed: the block that is marked as the fix, with what is to be filled in filled in, run by a shell.

A page marks it in the fence: ```sh fix. Where it is for several alerts that want different ones: ```sh fix=AlertName.
What is to be done when the alert has ended is marked ```sh afterwards. Words in angle brackets are filled in from the alert's labels, or by the drill, which then plays the person who knows.
"""

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def marked(page, mark, alert):
    """The commands that a runbook marks so, for this alert or for all of its alerts."""
    blocks = dict(re.findall(rf"^ *```sh {mark}(=\w+)?\n(.*?)^ *```", (TOP / page).read_text(), re.M | re.S))
    return blocks.get(f"={alert}", blocks.get(""))


def filled_in(commands, known):
    def fill(match):
        if match[1] not in known:
            raise LookupError(f"nobody knows what <{match[1]}> is, of {commands!r}")
        return known[match[1]]

    return re.sub(r"<([a-z][a-z ]*)>", fill, commands)


def follow(page, mark, alert, known, operate):
    """Runs the commands that are marked so, if there are any; answers them."""
    commands = filled_in(marked(page, mark, alert) or "", known)
    operate(commands)
    # Comments are for people.
    return [line.split("  #")[0].strip() for line in commands.splitlines() if line.strip()]
