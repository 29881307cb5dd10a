import hashlib, hmac, time

def verify(secret: str, header: str, body: bytes, tolerance: int = 300) -> bool:
    """header is X-Service-Signature: t=<unix>,v1=<hex>, with two v1 while the secret is being replaced."""
    parts = [part.split("=", 1) for part in header.split(",")]
    moment = next(value for name, value in parts if name == "t")
    expected = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    fits = any(name == "v1" and hmac.compare_digest(value, expected) for name, value in parts)
    return fits and abs(time.time() - int(moment)) <= tolerance
