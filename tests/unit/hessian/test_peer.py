"""Our Hessian 2 bytes as another Python package reads them.

python-hessian only writes Hessian 1, so the comparison goes one way: it must read from our encoding
what we put in. Where it is known to be wrong (strings over 1 024 characters, surrogate pairs) our
codec is held against the encoders of npm and Caucho instead, in ``test_plain.py``.
"""

import pytest
from pyhessian.parser import Parser

from vq.hessian.plain import encode

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    47,
    48,
    2047,
    2048,
    262143,
    262144,
    2**31 - 1,
    -(2**31),
    2**40,
    -(2**40),
    2**63 - 1,
    "",
    "orders",
    "x" * 31,
    "x" * 32,
    "x" * 1000,
    "grüße 你好",
    b"",
    b"\x00\xff" * 7,
    b"\x80" * 16,
    {},
    {"topic": "orders", "partition": 3, "crc": 0xFFFF_FFFF, "validate": True},
    {"tags": ["a", "b"], "more": {"deep": [1, 2, [3]]}},
]


def plain(value: object) -> object:
    """Return what the package read in our types: it gives lists as tuples, binary as its own."""
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return getattr(value, "value", value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_another_package_reads_what_we_write(value):
    """As the value of a reply, which is how it reads anything."""
    reply = Parser().parse_string(b"H\x02\x00R" + encode(value))
    assert plain(reply.value) == value
