"""Hessian 2 with classes, dates and references: as Java writes it, and bounded for any bytes."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from vq.errors import InvalidArgument, ProtocolError
from vq.hessian import encoding, objects
from vq.hessian.objects import Bounds, Classes, ObjectClass
from vq.hessian.plain import Long

FILE = Path(__file__).parents[2] / "testdata" / "hessian" / "caucho-4.0.38-objects.txt"
VECTORS = {
    name: bytes.fromhex(data)
    for name, data in (line.split("\t") for line in FILE.read_text("utf-8").splitlines())
}
BOUNDS = Bounds(1 << 20, 64, 10_000)
NONE = Classes({})


@dataclass
class Car:
    color: str
    model: str


@dataclass
class Order:
    """The fields in the order in which Java wrote them."""

    id: str
    count: int
    total: Long
    price: float
    paid: bool
    at: datetime
    raw: bytes
    car: Car | None
    tags: list[str]
    more: dict[str, int] | None = None


NUMBERED = [dataclasses.make_dataclass(f"C{number}", [("n", int)]) for number in range(17)]
CLASSES = Classes(
    {"Objects$Car": Car, "Objects$Order": Order}
    | {f"Objects$C{number}": cls for number, cls in enumerate(NUMBERED)}
)
AT = datetime(1998, 5, 8, 9, 51, 31, tzinfo=UTC)
CORVETTE = Car("red", "corvette")


def order(car: Car | None) -> Order:
    return Order(
        "o-17", 3, Long(5_000_000_000), 12.25, True, AT, b"\0\1\xff", car, ["a", "ü"], None
    )


#: What Java writes and we write.
BOTH: dict[str, Any] = {
    "date with milliseconds": AT + timedelta(milliseconds=123),
    "date of a second": AT,
    "date of a minute": AT.replace(second=0),
    "date before 1970": datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1),
    "date of a minute before 1970": datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
    "object": CORVETTE,
    "two objects of a class": [CORVETTE, Car("green", "civic")],
    "object in an object": order(CORVETTE),
    "object with null": order(None),
    "seventeen classes": [cls(number) for number, cls in enumerate(NUMBERED)],
    "map with a number as key": {1: "one"},
}
#: What only Java writes.
JAVA: dict[str, Any] = {
    "reference to an object": [CORVETTE, CORVETTE],
    "reference to a list": [[1, 2], [1, 2], CORVETTE, [1, 2]],
    "reference to a map": [{1: "one"}, {1: "one"}],
    "enum": {"name": "RED"},
    "decimal": {"scale": 2, "intVal": None},
    "array of objects": [CORVETTE],
    "typed map of objects": {"car": CORVETTE},
}


def decode(data: bytes, classes: Classes = NONE, bounds: Bounds = BOUNDS) -> Any:
    return objects.decode(data, classes, bounds)


def encode(value: object, classes: Classes = NONE, bounds: Bounds = BOUNDS) -> bytes:
    return objects.encode(value, classes, bounds)


@pytest.mark.parametrize("name", VECTORS)
def test_what_java_writes_is_read_to_the_same_value(name: str) -> None:
    if name == "list that contains itself":
        with pytest.raises(ProtocolError, match="value 0 contains itself"):
            decode(VECTORS[name])
        return
    expected = {**BOTH, **JAVA}[name]
    found = decode(VECTORS[name], CLASSES)
    assert found == expected
    assert type(found) is type(expected)


def test_all_vectors_are_used() -> None:
    assert {*BOTH, *JAVA, "list that contains itself"} == set(VECTORS)


@pytest.mark.parametrize("name", BOTH)
def test_our_bytes_are_those_of_java(name: str) -> None:
    """But for doubles, which we write in full."""
    value = BOTH[name]
    data = encode(value, CLASSES)
    short, full = b"\x5f\x00\x00\x2f\xda", encoding.encode(12.25)
    assert data == VECTORS[name].replace(short, full)
    assert decode(data, CLASSES) == value


CAR = b"C\x0bexample.Car\x92\x05color\x05model"
#: Examples of the specification, sections 4.3, 4.5 and 4.7 to 4.9.
SPECIFICATION: list[tuple[bytes, Any]] = [
    (b"\x4a\x00\x00\x00\xd0\x4b\x92\x84\xb8", AT),
    (b"\x4b\x00\xe3\x83\x8f", AT.replace(second=0)),
    (b"V\x04[int\x92\x90\x91", [0, 1]),
    (b"\x57\x90\x91Z", [0, 1]),
    (b"H\x91\x03fee\xa0\x03fie\xc9\x00\x03foeZ", {1: "fee", 16: "fie", 256: "foe"}),
    (
        b"M\x13com.caucho.test.Car\x05color\x0aaquamarine\x05model\x06Beetle"
        b"\x07mileageI\x00\x01\x00\x00Z",
        {"color": "aquamarine", "model": "Beetle", "mileage": 65_536},
    ),
    (CAR + b"O\x90\x03red\x08corvette", {"color": "red", "model": "corvette"}),
    (
        b"\x7a" + CAR + b"\x60\x03red\x08corvette\x60\x05green\x05civic",
        [{"color": "red", "model": "corvette"}, {"color": "green", "model": "civic"}],
    ),
]


@pytest.mark.parametrize(("data", "value"), SPECIFICATION)
def test_examples_of_the_specification(data: bytes, value: Any) -> None:
    assert decode(data) == value


def test_a_class_that_is_not_registered_is_a_dict() -> None:
    """Whatever its name: nothing is looked up."""
    for name in ("java.lang.Runtime", "subprocess.Popen", "vq.model.Message", "Objects$car"):
        data = b"C" + encoding.encode(name) + b"\x92\x01a\x01b\x60\x91\x92"
        assert decode(data, CLASSES) == {"a": 1, "b": 2}


@dataclass
class Picky:
    a: int
    b: int = 7
    made: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.a < 0:
            raise OSError("negative")


PICKY = Classes({"P": Picky})


def test_fields_may_come_and_go() -> None:
    """One that the class lacks is left out; one that the data lack gets its default."""
    assert decode(b"C\x01P\x92\x01z\x01a\x60\x95\x91", PICKY) == Picky(1)
    assert encode(Picky(1), PICKY) == b"C\x01P\x92\x01a\x01b\x60\x91\x97"


@pytest.mark.parametrize("data", [b"C\x01P\x91\x01b\x60\x91", b"C\x01P\x91\x01a\x60\x8f"])
def test_fields_that_a_class_does_not_take_are_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"class P cannot be made from its fields \['"):
        decode(data, PICKY)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x60", "class 0; only 0"),
        (b"O\x90", "class 0; only 0"),
        (b"C\x01P\x90O\x8f", "class -1; only 1"),
        (b"C\x01P\x8f\x60", "of -1 fields"),
        (b"C\x01PI\x7f\xff\xff\xff\x60", "more than 10000 values"),
        (b"C\x01P\x92\x01a\x01a\x60\x91\x92", "a field twice"),
        (b"C\x91\x90\x60", "the name of a class"),
        (b"C\x01P\x91\x91\x60\x91", "the name of a field"),
        (b"C\x01P\x91\x01a\x60", "ends early"),
        (b"C\x01P\x90", "ends early"),
        (b"Q\x90", "value 0; only 0"),
        (b"\x79Q\x91", "value 1; only 1"),
        (b"\x79Q\x8f", "value -1; only 1"),
        (b"\x79Q\x90", "value 0 contains itself"),
        (b"H\x01aQ\x90Z", "value 0 contains itself"),
        (b"C\x01P\x91\x01a\x60Q\x90", "value 0 contains itself"),
        (b"C\x0aLinkedList\x92\x04head\x04tailO\x90\x91Q\x90", "value 0 contains itself"),
        (b"J\x7f" + b"\xff" * 7, "outside the years"),
        (b"K\x80\0\0\0", "outside the years"),
        (b"J\0", "ends early"),
        (b"H\x78\x91Z", "key of a Hessian map is list"),
        (b"HHZ\x91Z", "key of a Hessian map is dict"),
        (b"H\x91\x91T\x91Z", "key True occurs twice"),
        (b"C\x01P\x90\x60\x60", "1 bytes follow"),
        (b"Z", "0x5a"),
    ],
)
def test_bad_documents_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        decode(data, CLASSES)


def test_many_definitions_do_not_use_up_the_stack() -> None:
    definition = b"C\x01P\x90"
    assert decode(definition * 5_000 + b"\x91") == 1
    with pytest.raises(ProtocolError, match="more than 10000 values"):
        decode(definition * 20_000 + b"\x91")


def test_a_reference_counts_as_what_it_refers_to() -> None:
    """Each of thirty lists has the one before it twice: 2**30 values in two hundred bytes."""
    bomb = b"\x79\x90"
    for number in range(30):
        bomb = b"\x7a" + bomb + b"Q" + encoding.encode(30 - number)
    with pytest.raises(ProtocolError, match="more than 10000 values"):
        decode(bomb)
    # A list of five values is read, and referred to once: 1 + 1 + 5 + 1 + 5.
    twice = b"\x7a\x7d\x90\x90\x90\x90\x90Q\x91"
    assert decode(twice, bounds=Bounds(100, 9, 13)) == [[0] * 5, [0] * 5]
    with pytest.raises(ProtocolError, match="more than 12 values"):
        decode(twice, bounds=Bounds(100, 9, 12))


def test_a_reference_is_as_deep_as_what_it_refers_to() -> None:
    """Otherwise a chain of them makes a value that no other code can walk."""
    # [[[0]], [Q 1]]: as deep as [[[0]], [[[0]]]]
    data = b"\x7a\x79\x79\x90\x79Q\x91"
    assert decode(data, bounds=Bounds(100, 4, 100)) == [[[0]], [[[0]]]]
    with pytest.raises(ProtocolError, match="deeper than 3"):
        decode(data, bounds=Bounds(100, 3, 100))


@pytest.mark.parametrize("opening", [b"\x79", b"\x57", b"H\x91", b"C\x01P\x91\x01a\x60"])
def test_depth_is_bounded(opening: bytes) -> None:
    for depth in (BOUNDS.depth_max + 1, 5_000):
        with pytest.raises(ProtocolError, match=r"deeper than 64|more than 10000"):
            decode(opening * depth + b"N")
    nested: Any = None
    for _ in range(BOUNDS.depth_max):
        nested = [nested]
    assert decode(encode(nested)) == nested
    with pytest.raises(InvalidArgument, match="deeper than 64"):
        encode([nested])


def test_the_size_of_a_document_is_bounded() -> None:
    """Also while it is made: shared lists are written each time they occur."""
    assert decode(b"\x79\x90", bounds=Bounds(2, 9, 9)) == [0]
    with pytest.raises(ProtocolError, match="of 2 bytes; at most 1"):
        decode(b"\x79\x90", bounds=Bounds(1, 9, 9))
    assert encode([0], bounds=Bounds(2, 9, 9)) == b"\x79\x90"
    shared: Any = [0]
    for _ in range(60):
        shared = [shared, shared]
    for value, bound in (([0], 1), ("x", 1), (shared, 1_000), (["x" * 100] * 10**6, 1_000)):
        with pytest.raises(InvalidArgument, match=f"more than {bound} bytes"):
            encode(value, bounds=Bounds(bound, 64, 9_999))


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidArgument, match="contains itself"):
        encode(cycle)


class Subclass(Car):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "is object, which Hessian 2 does not hold"),
        ({1, 2}, "is set"),
        (bytearray(b"x"), "is bytearray"),
        (Picky(1), r"Picky\(.*a registered dataclass"),
        (Subclass("a", "b"), "is Subclass"),
        (Car, "is type"),
        (1j, "is complex"),
        (datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001
        (AT.date(), "is date"),
        (2**63, "does not fit"),
        (10**5_000, "does not fit"),
        ("\ud800", "lone surrogate"),
        ({(1, 2): 3}, "of a map is tuple"),
        ({frozenset(): 3}, "of a map is frozenset"),
        ([{"a": [object()]}], "is object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_written_is_refused(value: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        encode(value, CLASSES)


def test_a_datetime_is_cut_to_milliseconds_and_comes_back_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    value = AT.astimezone(there).replace(microsecond=999_999)
    found = decode(encode(value))
    assert found == AT.replace(microsecond=999_000)
    assert found.tzinfo is UTC
    last = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
    for end in (datetime.min.replace(tzinfo=UTC), last):
        assert decode(encode(end)) == end


def test_every_truncation_is_refused() -> None:
    data = encode([order(CORVETTE), {1: AT}], CLASSES)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode(data[:size], CLASSES)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Classes({"A": int}), "class A = <class 'int'> is not a dataclass"),
        (lambda: Classes({"A": CORVETTE}), "is not a dataclass"),  # type: ignore[dict-item]
        (lambda: Classes({"": Car}), "name of a class is ''"),
        (lambda: Classes({1: Car}), "name of a class is 1"),  # type: ignore[dict-item]
        (lambda: Classes({"A": Car, "B": Car}), r"two names of \['A', 'B'\]"),
    ],
)
def test_what_cannot_be_registered_is_refused(make: Callable[[], Classes], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make()


def test_only_fields_that_the_constructor_takes_are_written() -> None:
    assert ObjectClass("P", Picky).fields == ("a", "b")


# What is written is read ------------------------------------------------------------------------
WEST, EAST = timezone(timedelta(hours=-12)), timezone(timedelta(hours=12))
TINY = dataclasses.make_dataclass("Tiny", [("a", int), ("b", int)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(9999, 12, 31, 23, tzinfo=WEST), "outside the years 1 to 9999"),
        (datetime(1, 1, 1, tzinfo=EAST), "outside the years 1 to 9999"),
        ({AT: 1, AT + timedelta(microseconds=1): 2}, "two keys of a map are written as"),
    ],
)
def test_what_no_reader_takes_is_not_written(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        encode(value)


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ([0] * 9, 10),
        ({1: 2, 3: 4}, 5),
        (TINY(1, 2), 6),
        ([TINY(1, 2), TINY(3, 4)], 10),
        ("x" * 0x8000, 2),
        ("x" * 0x8001, 2),
        ("ü" * 0x8001, 3),
        (b"x" * 0x1_0000, 3),
        ({"a": [b"", None, 1.5, AT]}, 7),
    ],
    ids=lambda each: f"{each!r:.20}",
)
def test_elements_that_are_written_are_bounded(value: Any, elements: int) -> None:
    classes = Classes({"Tiny": TINY})
    fits, tight = (Bounds(1 << 20, 64, most) for most in (elements, elements - 1))
    assert objects.decode(objects.encode(value, classes, fits), classes, fits) == value
    with pytest.raises(InvalidArgument, match=f"more than {elements - 1} values"):
        objects.encode(value, classes, tight)


def test_containers_that_change_meanwhile_are_written_as_they_were() -> None:
    """Their length comes before their values; here an inner value changes the outer ones."""
    numbers: list[Any] = []
    names: dict[str, Any] = {}

    @dataclass
    class Changing:
        def __getattribute__(self, name: str) -> Any:
            if name == "a":
                numbers.append(0)
                names[f"{len(names)}"] = 0
                return 1
            return super().__getattribute__(name)

        a: int = 1

    classes = Classes({"Changing": Changing})
    numbers += [Changing(), names, 2]
    names["first"] = Changing()
    found = objects.decode(objects.encode(numbers, classes, BOUNDS), NONE, BOUNDS)
    assert found[0] == {"a": 1}
    assert found[2:] == [2]


def test_a_value_without_a_text_is_refused_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise KeyError("no text")

    with pytest.raises(InvalidArgument, match="a Silent is Silent, which Hessian 2 does not hold"):
        encode(Silent())


@pytest.mark.parametrize(
    "data",
    [
        # [[[[0]], [0]], [Q 1]]: the first item of the value 1 is the deepest, not the last one
        b"\x7a\x7a\x79\x79\x90\x79\x90\x79Q\x91",
        # [[[0]], [Q 1], [Q 3]]: the value 3 is as deep as the reference inside it
        b"\x7b\x79\x79\x90\x79Q\x91\x79Q\x93",
    ],
)
def test_a_value_is_as_deep_as_the_deepest_one_inside(data: bytes) -> None:
    decode(data, bounds=Bounds(100, 5, 100))
    with pytest.raises(ProtocolError, match="deeper than 4"):
        decode(data, bounds=Bounds(100, 4, 100))
