"""Batches as they lie in a block, made without a log."""

import google_crc32c

from vq.store.records.format import CONTROL_BYTES, BatchHeader, encode_control
from vq.store.records.record import Properties, encode_properties


def keyed(key: object, **more: object) -> bytes | None:
    """Return properties with a key."""
    return encode_properties(Properties(key=key, **more))  # type: ignore[arg-type]


def batch(records: list[bytes], offset: int = 0, time_ms: int = 1_000) -> bytes:
    """Return one batch of these records."""
    body = b"".join(records)
    header = BatchHeader(offset, CONTROL_BYTES + len(body), len(records), time_ms)
    return encode_control(header, google_crc32c.value(body)) + body
