"""Our Hessian 2 bytes as another Python package reads them.

python-hessian only writes Hessian 1, so the comparison goes one way: it must read from our encoding
what we put in. Where it is known to be wrong (strings over 1 024 characters, surrogate pairs) our
codec is held against the encoders of npm and Caucho instead, in ``test_plain.py``.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from pyhessian.parser import Parser
from support.cases import case

from vq.hessian.encoding import encode
from vq.serializers import Hessian2

#: What python-hessian makes a date with is deprecated since Python 3.12.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:datetime\.datetime\.utcfromtimestamp\(\) is deprecated:DeprecationWarning"
)

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
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)  # it gives UTC without saying so
    if type(value).__name__ in {"Car", "Order"}:  # it makes classes of these names
        return type(value).__name__, plain(vars(value))
    return getattr(value, "value", value)


def test_another_package_reads_what_we_write():
    """As the value of a reply, which is how it reads anything."""
    for value in VALUES:
        with case(repr(value)[:200]):
            reply = Parser().parse_string(b"H\x02\x00R" + encode(value))
            assert plain(reply.value) == value


@dataclass
class Car:
    color: str
    year: int


@dataclass
class Order:
    id: str
    placed: datetime
    cars: list[Car]


PLACED = datetime(2026, 11, 23, 13, 0, 1, 5_000, tzinfo=UTC)
HESSIAN = Hessian2({"Car": Car, "Order": Order})
RED = ("Car", {"color": "red", "year": 1998})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (PLACED, PLACED),
        (PLACED.replace(second=0, microsecond=0), PLACED.replace(second=0, microsecond=0)),
        ({1: "a", 2.5: b"b", PLACED: None}, {1: "a", 2.5: b"b", PLACED: None}),
        (Car("red", 1998), RED),
        ([Car("red", 1998), Car("green", 7)], [RED, ("Car", {"color": "green", "year": 7})]),
        (
            Order("o", PLACED, [Car("red", 1998)]),
            ("Order", {"id": "o", "placed": PLACED, "cars": [RED]}),
        ),
    ],
)
def test_another_package_reads_our_dates_and_objects(value, expected):
    reply = Parser().parse_string(b"H\x02\x00R" + HESSIAN.dumps(value))
    assert plain(reply.value) == expected
