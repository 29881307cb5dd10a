"""Signs every attempt, and tries again what was not answered or met a passing fault."""

import asyncio
import hashlib
import hmac
import time
import uuid
from datetime import datetime, timezone

import httpx

from .client import Client

RETRIES, PASSING = 4, {429, 502, 503, 504}
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 60.0


def connect(base_url: str, api_key: str, timeout: float = 120.0) -> Client:
    """A client for the product of this key. It may be shared by threads, or by the tasks of one event loop."""
    client = Client(base_url=base_url, timeout=httpx.Timeout(timeout))
    client.set_httpx_client(httpx.Client(base_url=base_url, timeout=timeout, transport=Signed(api_key)))
    client.set_async_httpx_client(httpx.AsyncClient(base_url=base_url, timeout=timeout, transport=AsyncSigned(api_key)))
    return client


def sign(request: httpx.Request, api_key: str) -> None:
    """Gives one attempt its headers. The signature covers the path without the query."""
    _, mode, product, _ = api_key.split("_", 3)
    timestamp, nonce = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), uuid.uuid4().hex
    path = request.url.raw_path.split(b"?")[0].decode()
    signed = "\n".join([request.method, path, timestamp, nonce, hashlib.sha256(request.content).hexdigest()])
    request.headers.update({
        "X-Service-Product": product,
        "X-Service-Environment": "production" if mode == "live" else "sandbox",
        "X-Service-Api-Key": api_key,
        "X-Service-Timestamp": timestamp,
        "X-Service-Nonce": nonce,
        "X-Service-Signature": "sha256=" + hmac.new(api_key.encode(), signed.encode(), hashlib.sha256).hexdigest(),
    })
    if request.method != "GET":
        request.headers.setdefault("Idempotency-Key", uuid.uuid4().hex)


def pause(attempt: int, answer: httpx.Response | None) -> float | None:
    """How long until the next attempt; `None` if this answer is final."""
    if attempt >= RETRIES or answer is not None and answer.status_code not in PASSING:
        return None
    named = answer.headers.get("Retry-After", "") if answer is not None else ""
    seconds = float(named) if named.isdigit() else FIRST_PAUSE * 2**attempt
    return seconds if seconds <= LONGEST_PAUSE else None


class Signed(httpx.HTTPTransport):
    def __init__(self, api_key: str) -> None:
        super().__init__()
        self.api_key = api_key

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(RETRIES + 1):
            request.read()
            sign(request, self.api_key)
            try:
                answer, error = super().handle_request(request), None
            except httpx.TransportError as failure:
                answer, error = None, failure
            seconds = pause(attempt, answer)
            if seconds is None:
                break
            if answer is not None:
                answer.close()
            time.sleep(seconds)
        if answer is None:
            raise error
        return answer


class AsyncSigned(httpx.AsyncHTTPTransport):
    def __init__(self, api_key: str) -> None:
        super().__init__()
        self.api_key = api_key

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(RETRIES + 1):
            await request.aread()
            sign(request, self.api_key)
            try:
                answer, error = await super().handle_async_request(request), None
            except httpx.TransportError as failure:
                answer, error = None, failure
            seconds = pause(attempt, answer)
            if seconds is None:
                break
            if answer is not None:
                await answer.aclose()
            await asyncio.sleep(seconds)
        if answer is None:
            raise error
        return answer
