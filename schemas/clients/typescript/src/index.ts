// Signs every attempt, and tries again what was not answered or met a passing fault.
import { createHash, createHmac, randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import createClient, { type Client } from "openapi-fetch";
import type { paths } from "./api.js";

export type { components, operations, paths } from "./api.js";

const RETRIES = 4;
const PASSING = new Set([429, 502, 503, 504]);
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 60_000;

/** A client for the product of this key. */
export function connect(baseUrl: string, apiKey: string): Client<paths> {
  return createClient<paths>({ baseUrl, fetch: (request) => signedFetch(request, apiKey) });
}

async function signedFetch(request: Request, apiKey: string): Promise<Response> {
  const body = request.method === "GET" ? "" : await request.text();
  const headers = new Headers(request.headers);
  if (request.method !== "GET" && !headers.has("Idempotency-Key")) headers.set("Idempotency-Key", randomUUID());
  for (let attempt = 0; ; attempt++) {
    sign(headers, request, body, apiKey);
    const attempted = fetch(request.url, { method: request.method, headers, body: body || null, signal: request.signal });
    const answer = await attempted.catch((error: unknown) => (request.signal.aborted || attempt >= RETRIES ? Promise.reject(error) : undefined));
    if (answer !== undefined && (attempt >= RETRIES || !PASSING.has(answer.status))) return answer;
    const named = Number(answer?.headers.get("Retry-After") ?? Number.NaN) * 1000;
    const wait = Number.isNaN(named) ? FIRST_PAUSE_MS * 2 ** attempt : named;
    if (answer !== undefined && wait > LONGEST_PAUSE_MS) return answer;
    await pause(wait, undefined, { signal: request.signal });
  }
}

/** Gives one attempt its headers. The signature covers the path without the query. */
function sign(headers: Headers, request: Request, body: string, apiKey: string): void {
  const [, mode = "", product = ""] = apiKey.split("_", 3);
  const [timestamp, nonce] = [new Date().toISOString(), randomUUID()];
  const digest = createHash("sha256").update(body).digest("hex");
  const signed = [request.method, new URL(request.url).pathname, timestamp, nonce, digest].join("\n");
  headers.set("X-Service-Product", product);
  headers.set("X-Service-Environment", mode === "live" ? "production" : "sandbox");
  headers.set("X-Service-Api-Key", apiKey);
  headers.set("X-Service-Timestamp", timestamp);
  headers.set("X-Service-Nonce", nonce);
  headers.set("X-Service-Signature", `sha256=${createHmac("sha256", apiKey).update(signed).digest("hex")}`);
}
