"""A receiver that checks each delivery with the published library and with the ten lines of ingress/README.md.

Prints its port, then a line of JSON per delivery. The secret comes in on standard input, before the first delivery.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError
from verify import verify

secret = ""


def by_library(headers: dict, body: bytes) -> bool:
    try:
        Webhook(secret).verify(body, headers)
        return True
    except WebhookVerificationError:
        return False


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = dict(self.headers.items())
        signature = self.headers["x-service-signature"]
        forged = body.replace(b'"version":"1.0.0"', b'"version":"1.0.1"')
        seen = {
            "event": self.headers["x-service-event"],
            "id": self.headers["webhook-id"],
            "body_id": json.loads(body)["id"],
            "library": by_library(headers, body),
            "ten_lines": verify(secret, signature, body),
            "forged": forged == body or by_library(headers, forged) or verify(secret, signature, forged),
            "signatures": signature.count("v1="),
        }
        print(json.dumps(seen), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(json.dumps({"port": server.server_address[1]}), flush=True)
secret = sys.stdin.readline().strip()
threading.Thread(target=server.serve_forever, daemon=True).start()
# Ends with whoever started it.
sys.stdin.read()
