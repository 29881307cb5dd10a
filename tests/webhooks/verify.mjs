import { createHmac, timingSafeEqual } from "node:crypto";

/** header is X-Service-Signature: t=<unix>,v1=<hex>, with two v1 while the secret is being replaced. */
export function verify(secret, header, body, tolerance = 300) {
  const parts = header.split(",").map((part) => part.split("="));
  const moment = parts.find(([name]) => name === "t")[1];
  const expected = createHmac("sha256", secret).update(`${moment}.`).update(body).digest();
  const fits = ([name, hex]) => name === "v1" && hex.length === 64 && timingSafeEqual(Buffer.from(hex, "hex"), expected);
  return parts.some(fits) && Math.abs(Date.now() / 1000 - Number(moment)) <= tolerance;
}
