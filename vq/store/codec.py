"""The loops of a client that run once per message: records made, placed, and common ones read.

Each is there twice: here in Python, the reference, and compiled in ``_codec.c``, which is built at
install time where a C compiler is found and then takes its place. Both take and give the same; a
test holds them against each other. Whatever is not common (headers, compression, damage) is left to
``record``.
"""

from collections.abc import Callable

from vq.model import Message, SendResult
from vq.store.format import (
    CONTROL_PAYLOAD_BYTES,
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    md5,
)
from vq.store.record import KEY_BYTES_SHORT, KEY_FIELD

try:
    from vq.store import _codec
except ImportError:  # nothing compiled it
    _codec = None  # type: ignore[assignment]

__all__ = [
    "COMPILED",
    "decode_common",
    "encode_records",
    "places",
    "python_decode_common",
    "python_encode",
    "python_places",
]

#: Whether the compiled loops are in use.
COMPILED = _codec is not None
#: Above this a record's flag says something that is not common.
_COMMON_FLAG_MAX = FLAG_TAG | FLAG_PROPERTIES
assert _COMMON_FLAG_MAX < FLAG_CONTROL


def python_encode(
    contents: list[bytes], heads: list[tuple[int, bytes] | None], ids: list[int]
) -> tuple[bytes, list[int]]:
    """Return records back to back, and the size of each.

    Args:
        contents: The payloads.
        heads: Per record its flag and what stands before the payload; None for a plain record.
        ids: Message ids in [0, 2**63).

    Raises:
        ValueError: The lists differ in length.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    add = parts.append
    add_size = sizes.append
    pack = RECORD_HEADER.pack
    digest = md5
    for content, head, message_id in zip(contents, heads, ids, strict=True):
        if head is None:
            flag = 0
            body = content
        else:
            flag, before = head
            body = before + content
        size = len(body)
        add(pack(size, digest(body).digest(), message_id, flag))  # "4s" keeps the first four
        add(body)
        add_size(size + RECORD_HEADER_BYTES)
    return b"".join(parts), sizes


def python_places(
    partition: int, offset: int, sizes: list[int], ids: list[int]
) -> list[SendResult]:
    """Return where each record of a batch lies, the first one at ``offset``.

    Example: at 88, sizes 30 and 40 lie at 88 and 118.

    Raises:
        ValueError: The lists differ in length.
    """
    result = SendResult
    new = tuple.__new__  # what SendResult(...) does, without its Python-level wrapper
    found: list[SendResult] = []
    append = found.append
    for size, message_id in zip(sizes, ids, strict=True):
        append(new(result, (partition, offset, message_id)))
        offset += size
    return found


def python_decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    tags: dict[bytes, str],
    out: list[Message],
) -> int:
    """Append the messages from ``position`` on to ``out`` as long as their records are common ones.

    Common is a whole record with a payload, or a tag, or a key of 1 to 127 bytes, and nothing else,
    whose MD5 is right. Control records between them are skipped.

    Args:
        data: Log bytes.
        position: In ``data``, a record boundary.
        base: Offset of the first byte of ``data`` in the partition.
        topic: Put into every message, as ``partition`` is.
        partition: See ``topic``.
        tags: The text of every tag seen so far; kept up.
        out: Receives the messages.

    Returns:
        The position of the first record that is not common, or the end of the last one.
    """
    unpack = RECORD_HEADER.unpack_from
    digest = md5
    append = out.append
    new = tuple.__new__  # what Message(...) does, without its Python-level wrapper
    message = Message
    size = len(data)
    last = size - RECORD_HEADER_BYTES
    while position <= last:
        length, checksum, message_id, flag = unpack(data, position)
        start = position + RECORD_HEADER_BYTES
        end = start + length
        if end > size:
            break
        if flag > _COMMON_FLAG_MAX:
            if flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES:
                break
            position = end
            continue
        body = data[start:end]
        if digest(body).digest()[:4] != checksum:
            break
        tag = key = None
        try:
            if flag & FLAG_TAG:
                at = 4 + int.from_bytes(body[:4], "big")
                if at > len(body):
                    break
                encoded = body[4:at]
                tag = tags.get(encoded)
                if tag is None:
                    tag = tags[encoded] = encoded.decode()
                body = body[at:]
            if flag & FLAG_PROPERTIES:
                at = 4 + int.from_bytes(body[:4], "big")
                if not 7 <= at <= min(len(body), 6 + KEY_BYTES_SHORT):
                    break
                if body[4] != KEY_FIELD or body[5] != at - 6:
                    break
                key = body[6:at].decode()
                body = body[at:]
        except UnicodeDecodeError:
            break
        offset = base + position
        append(
            new(
                message,
                (topic, body, tag, key, None, partition, offset, base + end, message_id),
            )
        )
        position = end
    return position


def _compiled_places(
    partition: int, offset: int, sizes: list[int], ids: list[int]
) -> list[SendResult]:
    return _codec.places(SendResult, partition, offset, sizes, ids)


def _compiled_decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    tags: dict[bytes, str],
    out: list[Message],
) -> int:
    return _codec.decode_common(
        data,
        position,
        base,
        topic,
        partition,
        Message,
        tags,
        out,
        FLAG_CONTROL,
        CONTROL_PAYLOAD_BYTES,
    )


encode_records: Callable[
    [list[bytes], list[tuple[int, bytes] | None], list[int]], tuple[bytes, list[int]]
] = python_encode if _codec is None else _codec.encode_records
places: Callable[[int, int, list[int], list[int]], list[SendResult]] = (
    python_places if _codec is None else _compiled_places
)
decode_common: Callable[[bytes, int, int, str, int, dict[bytes, str], list[Message]], int] = (
    python_decode_common if _codec is None else _compiled_decode_common
)
