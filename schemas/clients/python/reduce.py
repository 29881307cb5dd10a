"""Leaves of the document what a client needs: every operation with its answers, and one answer for all refusals, which look alike."""

import json
import re
import sys


def reduce(document):
    for path, item in list(document["paths"].items()):
        if not path.startswith("/v1/"):
            del document["paths"][path]
            continue
        for operation in (value for key, value in item.items() if key != "parameters"):
            answers = operation["responses"]
            done = {status: answer for status, answer in answers.items() if status.startswith("2")}
            refused = [answer for status, answer in answers.items() if status not in done]
            operation["responses"] = {**done, **({"default": refused[0]} if refused else {})}
    schemas = document["components"]["schemas"]
    while unused := set(schemas) - set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))):
        for name in unused:
            del schemas[name]
    return document


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as given, open(sys.argv[2], "w", encoding="utf-8") as reduced:
        json.dump(reduce(json.load(given)), reduced)
