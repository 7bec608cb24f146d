"""The golden keys of tests/testdata/store/keys.txt."""

import json
from pathlib import Path
from typing import NamedTuple

from vq.model import Key

#: Numbers of partitions for which the file has each key's partition.
COUNTS = (1, 5, 16, 1000)


class KeyVector(NamedTuple):
    """A key, the properties of a record that has nothing else, and its partition by count."""

    key: Key
    properties: bytes
    partitions: dict[int, int]


def _vector(line: str) -> KeyVector:
    key, properties, *partitions = line.split("\t")
    value = json.loads(key)
    return KeyVector(
        bytes.fromhex(value["hex"]) if isinstance(value, dict) else value,
        bytes.fromhex(properties),
        dict(zip(COUNTS, map(int, partitions), strict=True)),
    )


_FILE = Path(__file__).parents[1] / "testdata" / "store" / "keys.txt"
KEY_VECTORS = [
    _vector(line) for line in _FILE.read_text("utf-8").splitlines() if not line.startswith("#")
]
