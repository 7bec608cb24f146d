"""What the bytes of a message say."""

from hypothesis import given
from hypothesis import strategies as st

from vq.decoding.contents import SHOWN_BYTES_MAX, Format, decoded
from vq.hessian.encoding import encode


def test_the_first_format_that_fits_is_taken() -> None:
    assert decoded(b'{"a": [1, "\xe4\xb8\xad"]}').format is Format.JSON
    assert decoded("grüße 42".encode()).format is Format.TEXT
    assert decoded(encode({"a": 1.5})).format is Format.HESSIAN
    assert decoded(b"\xff\xfe\x00\x01").format is Format.HEX
    assert decoded(b"").text == ""
    assert decoded(b"17").format is Format.TEXT


def test_what_is_not_what_was_asked_for_is_hex_with_the_reason() -> None:
    found = decoded(b"\xff{", Format.JSON)
    assert (found.format, bool(found.problem)) == (Format.HEX, True)
    assert "[" * 10 in decoded(b"[" * 60_000, Format.TEXT).text
    assert decoded(b"[" * 60_000, Format.JSON).problem
    assert decoded(b"[" * 60_000).format is Format.TEXT


def test_only_the_beginning_of_long_contents_is_shown() -> None:
    found = decoded("中".encode() * SHOWN_BYTES_MAX)
    assert found.cut
    assert set(found.text) == {"中"}
    assert decoded(b"\x00" * 100_000).cut


@given(st.binary(max_size=400), st.sampled_from(Format))
def test_no_bytes_fail(data: bytes, wanted: Format) -> None:
    assert isinstance(decoded(data, wanted).text, str)


def test_values_are_laid_out_in_lines_or_in_one() -> None:
    assert decoded(b'{"a":[1]}').text.count("\n") == 4
    assert decoded(b'{"a":[1]}', lines=False).text == '{"a": [1]}'
    assert decoded(b"\xff\xfe\x00\x01", lines=False).text == "fffe0001"


def test_what_lies_deep_is_in_one_line_rather_than_in_many_long_ones() -> None:
    """Each line of it would begin with hundreds of spaces: of 64 KiB came 29 MB."""
    deep = b"[" * 450 + b"1," * 32_000 + b"1" + b"]" * 450
    found = decoded(deep)
    assert (found.format, found.text.count("\n")) == (Format.JSON, 0)
    assert len(found.text) < 4 * SHOWN_BYTES_MAX
