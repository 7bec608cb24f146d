"""Contents as applications send them, the same in every run: orders in JSON, log lines, noise.

Compression is measured with them, since its gain depends on the content.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Final

_STATES: Final = ("created", "paid", "shipped", "cancelled")
_CURRENCIES: Final = ("EUR", "USD", "CNY")
_LEVELS: Final = ("INFO", "WARN", "DEBUG")
_EVENTS: Final = ("took", "failed after", "queued for")


def _order(rng: random.Random) -> bytes:
    """Return one order event, 190 to 330 bytes."""
    event = {
        "order_id": f"O{rng.randrange(10**10):010}",
        "customer": rng.randrange(10**7),
        "created_at": f"2026-11-{rng.randrange(1, 29):02}T{_time(rng)}.{rng.randrange(1000):03}Z",
        "status": rng.choice(_STATES),
        "currency": rng.choice(_CURRENCIES),
        "items": [
            {
                "sku": f"SKU-{rng.randrange(10**6):06}",
                "quantity": rng.randrange(1, 9),
                "price_cents": rng.randrange(100, 99_999),
            }
            for _ in range(rng.randrange(1, 4))
        ],
    }
    return json.dumps(event).encode() + b"\n"


def _log_line(rng: random.Random) -> bytes:
    """Return one line of a service's log, some 130 bytes."""
    text = (
        f"2026-11-23 {_time(rng)},{rng.randrange(1000):03} {rng.choice(_LEVELS)} "
        f"[{rng.choice(('http', 'worker', 'db'))}-{rng.randrange(64)}] "
        f"com.shop.{rng.choice(('cart', 'payment', 'stock'))}."
        f"{rng.choice(('Service', 'Client', 'Store'))} request={rng.getrandbits(64):016x} "
        f"user={rng.randrange(10**6)} {rng.choice(_EVENTS)} {rng.randrange(1, 5000)} ms\n"
    )
    return text.encode()


def _time(rng: random.Random) -> str:
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"


def _text(make: Callable[[random.Random], bytes], seed: int, size: int) -> bytes:
    rng = random.Random(seed)

    def parts() -> Iterator[bytes]:
        missing = size
        while missing > 0:
            part = make(rng)
            yield part
            missing -= len(part)

    return b"".join(parts())[:size]


def orders(seed: int, size: int) -> bytes:
    """Return ``size`` bytes of order events in JSON, one a line."""
    return _text(_order, seed, size)


def log_lines(seed: int, size: int) -> bytes:
    """Return ``size`` bytes of log lines."""
    return _text(_log_line, seed, size)


def noise(seed: int, size: int) -> bytes:
    """Return ``size`` random bytes, which nothing makes smaller."""
    return random.Random(seed).randbytes(size)


KINDS: Final[dict[str, Callable[[int, int], bytes]]] = {
    "orders": orders,
    "log lines": log_lines,
    "noise": noise,
}
