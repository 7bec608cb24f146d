"""Small JSON files that say whose data lie beside them, with a checksum of themselves.

    {"v": 2, "topic": "orders", "id": "5d2f…", "crc": "0a1b2c3d"}

A person can read one, and write one: version 1 has no ``crc``. From version 2 on ``crc`` comes
last and is the CRC-32C, in hexadecimal, of the JSON text of the other fields. So a changed byte
makes the file unreadable, never another topic's or another broker's.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import google_crc32c

from vq.errors import CorruptData

#: The first version with a checksum.
CHECKED_FROM: Final = 2
#: What damaged JSON ends in; the last two are for 1e999 as a number and for "[[[[" and so on.
_UNREADABLE: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def checksum(text: str) -> str:
    """Return the CRC-32C of a text, in hexadecimal."""
    return f"{google_crc32c.value(text.encode()):08x}"


def encode_text(version: int, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of this version, 2 or later, with these fields."""
    fields = {"v": version, **values}
    return (json.dumps({**fields, "crc": checksum(json.dumps(fields))}) + "\n").encode()


def decode_text(data: bytes, *, version_max: int) -> tuple[int, dict[str, Any]]:
    """Return the version and the fields of a file; above ``version_max`` they are not checked.

    Raises:
        CorruptData: It is no such file, or fails its checksum.
    """
    try:
        values = json.loads(data)
        crc = values.pop("crc", None)
        version = int(values["v"])
        if version <= version_max and (crc is not None or version >= CHECKED_FROM):
            expected = checksum(json.dumps(values))
            if crc != expected:
                raise CorruptData(f"its checksum is {crc}, that of its contents {expected}")
        del values["v"]
    except _UNREADABLE as error:
        raise CorruptData(f"{type(error).__name__}: {error}") from error
    return version, values
