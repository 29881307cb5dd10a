#!/usr/bin/env python3
"""`docker compose` of the drill: asks the drill to do with its processes what compose does with containers.

Runbooks are followed to the letter, and the installation of the drill has no containers.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as drill:
    drill.connect(os.environ["DRILL_SOCKET"])
    settings = {name: value for name, value in os.environ.items() if name.startswith("POSTRIDER_")}
    drill.sendall(json.dumps({"arguments": sys.argv[1:], "settings": settings}).encode() + b"\n")
    answer = json.loads(drill.makefile().readline())
print(answer["said"])
sys.exit(0 if answer["ok"] else 1)
