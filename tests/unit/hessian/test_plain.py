"""Hessian 2 against other encoders' bytes, and against everything that must be refused."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from support.cases import case

from vq import limits
from vq.errors import InvalidArgument, ProtocolError
from vq.hessian import encoding
from vq.hessian import plain as hessian
from vq.hessian.plain import DEPTH_MAX, Long, Value

TESTDATA = Path(__file__).parents[2] / "testdata" / "hessian"
CASES: dict[str, dict[str, Any]] = json.loads((TESTDATA / "cases.json").read_text("utf-8"))
ONLY_JAVA: dict[str, Value] = {
    "typed map and array": {"topic": "orders", "tags": ["a", "b"]},
    "typed lists, type named once": [["a"], ["b", "c"]],
    "typed array of 9": [1, 2, 3, 4, 5, 6, 7, 8, 9],
}


def build(tagged: dict[str, Any]) -> Value:
    """Return the value that a case of cases.json describes."""
    ((kind, value),) = tagged.items()
    match kind:
        case "null":
            return None
        case "long":
            return Long(value)
        case "repeated":
            return str(value["piece"] * value["count"] + value["tail"])
        case "binary":
            return bytes(number % 251 for number in range(value))
        case "list":
            return [build(item) for item in value]
        case "map":
            return {key: build(item) for key, item in value.items()}
        case _:
            scalar: Value = value
            return scalar


def vectors(name: str) -> list[tuple[str, bytes]]:
    """Return name and bytes of every line of a file of vectors."""
    out = []
    for line in (TESTDATA / name).read_text("utf-8").splitlines():
        case, words = line.split("\t")
        pieces = [re.fullmatch(r"([0-9a-f]+)(?:\*(\d+))?", word) for word in words.split(" ")]
        data = b"".join(bytes.fromhex(m[1]) * int(m[2] or 1) for m in pieces if m is not None)
        out.append((case, data))
    return out


@pytest.mark.parametrize("source", ["hessian.js-2.11.0.txt", "caucho-4.0.38.txt"])
def test_what_others_encode_is_decoded_to_the_same_value(source: str) -> None:
    """All values of cases.json, and the typed containers that Java writes."""
    seen = set()
    for name, data in vectors(source):
        expected = ONLY_JAVA[name] if name in ONLY_JAVA else build(CASES[name])
        decoded = hessian.decode(data, bytes_max=limits.MIB)
        assert decoded == expected, name
        assert type(decoded) is type(expected) or type(expected) is Long, name
        seen.add(name)
    assert seen >= set(CASES)


def test_our_encoding_is_that_of_caucho() -> None:
    """Byte for byte, except where several encodings of one value are good.

    We write every double in full, split long binary and strings at other places, and our maps have
    the order of their entries where Java's have that of their hashes.
    """
    free = re.compile(
        r"double|binary (1024|4096|70000)|(ascii|three-byte) (32769|70000)|request|pair"
    )
    differing = [
        name
        for name, data in vectors("caucho-4.0.38.txt")
        if name in CASES and encoding.encode(build(CASES[name])) != data
    ]
    assert [name for name in differing if not free.search(name)] == []


def test_our_encoding_decodes_to_the_same_value() -> None:
    """Round trip of every case."""
    for name, tagged in CASES.items():
        with case(name):
            value = build(tagged)
            assert hessian.decode(encoding.encode(value), bytes_max=limits.MIB) == value


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("class definition", b"C\x01a\x90"),
        ("object", b"O\x90"),
        ("short object", b"\x60"),
        ("reference", b"\x79Q\x90"),
        ("reference to itself", b"HQ\x90\x90Z"),
        ("date", b"J" + bytes(8)),
        ("compact date", b"K" + bytes(4)),
        ("reserved 0x40", b"\x40"),
        ("end outside a container", b"Z"),
        ("reserved G", b"G"),
    ],
)
def test_what_is_no_plain_value_is_refused(what: str, data: bytes) -> None:
    """No class, no reference, no date."""
    with pytest.raises(ProtocolError):
        hessian.decode(data)


def test_objects_hidden_in_containers_and_types_are_refused() -> None:
    """A map key, a map value, a list element and a type are no way around."""
    for data in (b"HC\x01a\x90\x90Z", b"H\x01aC\x01a\x90Z", b"\x79C\x01a\x90", b"MC\x01a\x90Z"):
        with pytest.raises(ProtocolError, match="0x43"):
            hessian.decode(data)


def test_the_name_of_a_type_is_read_over() -> None:
    """Whatever it says: nothing is looked up."""
    name = b"javax.script.ScriptEngineManager"
    data = b"M\x30" + bytes([len(name)]) + name + b"\x01a\x91Z"
    assert hessian.decode(data) == {"a": 1}


def test_the_number_of_a_type_never_named_is_refused() -> None:
    """Types are numbered in the order of their names."""
    assert hessian.decode(b"\x7aM\x01tZM\x90Z") == [{}, {}]
    for number in (b"\x91", b"\x8f", b"I\x7f\xff\xff\xff"):
        with pytest.raises(ProtocolError, match="type"):
            hessian.decode(b"\x7aM\x01tZM" + number + b"Z")


def test_a_key_twice_is_refused() -> None:
    """Two readers of one document must not see two values."""
    with pytest.raises(ProtocolError, match=r"'a' occurs twice"):
        hessian.decode(b"H\x01a\x91\x01a\x92Z")


@pytest.mark.parametrize("key", [b"\x91", b"N", b"\x20", b"\x78", b"HZ"])
def test_a_key_that_is_no_string_is_refused(key: bytes) -> None:
    """Also containers, which could not be keys here anyway."""
    with pytest.raises(ProtocolError, match="not a string"):
        hessian.decode(b"H" + key + b"\x91Z")


@pytest.mark.parametrize("opening", [b"\x79", b"\x57", b"H\x01a", b"U\x01t", b"M\x01t\x01a"])
def test_depth_is_bounded(opening: bytes) -> None:
    """Sixteen containers are read, a seventeenth is not, and no input overflows the stack."""
    for depth in (DEPTH_MAX + 1, 10_000):
        with pytest.raises(ProtocolError, match=f"deeper than {DEPTH_MAX}"):
            hessian.decode(opening * depth + b"N")
    nested: Value = None
    for _ in range(DEPTH_MAX):
        nested = [nested]
    assert hessian.decode(encoding.encode(nested)) == nested
    with pytest.raises(InvalidArgument, match=f"deeper than {DEPTH_MAX}"):
        encoding.encode([nested])


def test_the_number_of_values_is_bounded() -> None:
    """Keys count, too."""
    assert hessian.decode(b"H\x01a\x91Z", elements_max=3) == {"a": 1}
    with pytest.raises(ProtocolError, match="more than 2 values"):
        hessian.decode(b"H\x01a\x91Z", elements_max=2)
    with pytest.raises(ProtocolError, match="more than"):
        hessian.decode(b"\x57" + b"N" * 60_000 + b"Z")
    with pytest.raises(ProtocolError, match="more than"):
        hessian.decode(b"R\x00\x00" * 20_000)
    with pytest.raises(ProtocolError, match="at most 65536"):
        hessian.decode(b"N" * 65_537)


@pytest.mark.parametrize(
    "data", [b"XI\x7f\xff\xff\xff", b"XI\xff\xff\xff\xff", b"V\x01tI\x7f\0\0\0"]
)
def test_an_announced_length_allocates_nothing(data: bytes) -> None:
    """Two thousand million values in six bytes are refused at once, a negative number, too."""
    with pytest.raises(ProtocolError, match="list of"):
        hessian.decode(data)


def test_bytes_behind_the_value_are_refused() -> None:
    """One header is one value."""
    with pytest.raises(ProtocolError, match="2 bytes follow"):
        hessian.decode(b"NNN")


@pytest.mark.parametrize("name", ["put request", "list of everything", "map in map", "pairs 100"])
def test_every_truncation_is_refused(name: str) -> None:
    """A document cut anywhere is no document; what is left is not guessed."""
    data = encoding.encode(build(CASES[name]))
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            hessian.decode(data[:size])


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("lone high surrogate", b"\x01\xed\xa0\x80"),
        ("lone low surrogate", b"\x01\xed\xb0\x80"),
        ("overlong", b"\x01\xc0\x80"),
        ("continuation first", b"\x01\x80"),
        ("beyond Unicode", b"\x02\xf5\x80\x80\x80"),
        ("cut character", b"\x01\xe6\xbc"),
        ("half of a four-byte character", b"\x01\xf0\x9f\x98\x80"),
    ],
)
def test_bad_text_is_refused(what: str, data: bytes) -> None:
    """Strings are Unicode text, nothing else."""
    with pytest.raises(ProtocolError):
        hessian.decode(data)


def test_a_character_of_four_bytes_is_read_as_two_units() -> None:
    """Encoders outside Java may write plain UTF-8; they must count as Java does."""
    assert hessian.decode(b"\x03" + "😀b".encode()) == "😀b"


@pytest.mark.parametrize("text", ["é", "漢", "😀", "aé", "é漢😀"])
def test_what_follows_a_string_is_not_taken_for_text(text: str) -> None:
    """Codes 0x80 to 0xbf are small integers, and also what characters go on with."""
    for number in (-16, 0, 16, 47):
        assert hessian.decode(encoding.encode([text, number])) == [text, number]


def test_a_pair_may_be_split_between_chunks() -> None:
    """The halves meet when the chunks are joined."""
    assert hessian.decode(b"R\x00\x01\xed\xa0\xbd\x01\xed\xb8\x80") == "😀"


def chunks(data: bytes) -> list[bytes]:
    """The bytes of each chunk of an encoded string, by their count of units."""
    found = []
    while data:
        code = data[0]
        if code in (0x52, 0x53):
            units, data = int.from_bytes(data[1:3], "big"), data[3:]
        elif code < 0x20:
            units, data = code, data[1:]
        else:
            units, data = (code - 0x30) << 8 | data[1], data[2:]
        size = 0
        for _ in range(units):
            lead = data[size]
            size += 1 if lead < 0x80 else 2 if lead < 0xE0 else 3
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("before", [0x7FFE, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x1_0000])
@pytest.mark.parametrize("filler", ["a", "ü", "€"])
def test_no_chunk_ends_between_the_halves_of_a_pair(before: int, filler: str) -> None:
    """A reader that decodes chunk by chunk could not make sense of a lone half."""
    text = filler * before + "\N{GRINNING FACE}" * 3 + filler * 5
    encoded = encoding.encode(text)
    parts = chunks(encoded)
    assert len(parts) > 1
    joined = "".join(
        part.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16")
        for part in parts
    )
    assert joined == text
    assert hessian.decode(encoded, bytes_max=len(encoded)) == text


def test_a_chunk_may_be_followed_only_by_a_chunk() -> None:
    """Of the same kind."""
    for data in (b"R\x00\x01aN", b"R\x00\x01a\x20", b"A\x00\x01aN", b"A\x00\x01a\x00"):
        with pytest.raises(ProtocolError, match="a chunk of"):
            hessian.decode(data)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800", {1: 2}, object(), {"a": {1, 2}}])
def test_what_cannot_be_encoded_is_refused(value: Any) -> None:
    """With an error of the caller's, not of the peer's."""
    with pytest.raises(InvalidArgument):
        encoding.encode(value)


def test_doubles_are_written_in_full() -> None:
    """And read back bit by bit."""
    for value in (0.0, -0.0, 1.5, float("inf"), 5e-324):
        assert encoding.encode(value) == b"D" + struct.pack(">d", value)
        assert struct.pack(">d", hessian.decode(encoding.encode(value))) == struct.pack(">d", value)
