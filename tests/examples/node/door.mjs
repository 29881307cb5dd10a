// How a program gets to Postrider's front door on NATS. What the others here share.
import { readFile } from "node:fs/promises";
import { connect as dial, headers, nkeyAuthenticator } from "@nats-io/transport-node";

export const product = process.env.PRODUCT ?? "demo";
export const environment = process.env.ENVIRONMENT ?? "production";
export const tenant = process.env.TENANT ?? "demo-tenant";
// Where servers know users, a product reaches its own consumers under this name, and nothing else of JetStream's interface.
export const apiPrefix = process.env.NATS_SEED_FILE ? "mail.v1.follow" : "$JS.API";

/// Connects as the product's user. NATS_URL names the servers; NATS_SEED_FILE the file that `postrider nats-user` wrote (left out
/// where the servers know no users). NODE_EXTRA_CA_CERTS names an authority of your own.
export async function connect() {
  const servers = process.env.NATS_URL.split(",");
  const seed = process.env.NATS_SEED_FILE && (await readFile(process.env.NATS_SEED_FILE, "utf8")).trim();
  return dial({
    servers,
    ...(seed ? { authenticator: nkeyAuthenticator(new TextEncoder().encode(seed)) } : {}),
    ...(servers[0].startsWith("tls:") ? { tls: {} } : {}),
    // The only inbox that this user may listen to, and nobody else.
    inboxPrefix: `_INBOX_${product}_${environment}`,
  });
}

/// Asks and waits for the answer, which is the one HTTP would give. With a message id it is done once, however often it is asked.
export async function call(client, operation, body = {}, messageId = undefined) {
  const head = headers();
  if (messageId) head.set("Idempotency-Key", messageId);
  const subject = `mail.v1.api.${product}.${environment}.${operation}`;
  const answer = await client.request(subject, JSON.stringify(body), { timeout: 30_000, headers: head });
  const told = answer.json();
  const status = Number(answer.headers.get("Mail-Status"));
  if (status >= 300) {
    throw Object.assign(new Error(`${status} ${told.error}: ${told.detail}`), { status, code: told.error, fields: told.fields });
  }
  return told;
}

export const say = (value) => console.log(JSON.stringify(value));
