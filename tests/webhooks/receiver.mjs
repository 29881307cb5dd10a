// A receiver that checks each delivery with the published library and with the ten lines of ingress/README.md.
//
// Prints its port, then a line of JSON per delivery. The secret comes in on standard input, before the first delivery.

import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

import { verify } from "./verify.mjs";

// The packages are installed elsewhere.
const { Webhook } = createRequire(pathToFileURL(`${process.argv[2]}/`))("standardwebhooks");
let secret = "";

function byLibrary(headers, body) {
  try {
    new Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
}

const server = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts).toString();
  const signature = request.headers["x-service-signature"];
  const forged = body.replace('"version":"1.0.0"', '"version":"1.0.1"');
  const seen = {
    event: request.headers["x-service-event"],
    id: request.headers["webhook-id"],
    body_id: JSON.parse(body).id,
    library: byLibrary(request.headers, body),
    ten_lines: verify(secret, signature, body),
    forged: forged === body || byLibrary(request.headers, forged) || verify(secret, signature, forged),
    signatures: signature.split("v1=").length - 1,
  };
  console.log(JSON.stringify(seen));
  response.writeHead(204).end();
});

server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ port: server.address().port }));
  const lines = createInterface({ input: process.stdin });
  lines.once("line", (line) => { secret = line.trim(); });
  // Ends with whoever started it.
  lines.once("close", () => process.exit());
});
