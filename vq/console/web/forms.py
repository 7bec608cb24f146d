"""The one form of the console: fields as a template shows them, and what was typed, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.console.web.languages import N_
from vq.errors import InvalidArgument
from vq.model import Key
from vq.shown import shown

#: What the text of a key can mean.
KEY_KINDS: Final = (
    ("text", N_("text")),
    ("number", N_("a number")),
    ("hex", N_("bytes as hex digits")),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form.

    Attributes:
        name: Of the value that is sent.
        label: In English; the page translates it. Names of settings are shown as they are.
        kind: text, number, area, select, check, password, hidden, moment, file.
        value: What is in it.
        options: Of a select: value and text.
        help: What it means, in English.
        required: It must not be empty.
        least, most: Of a number.
        code: The label is a name of vq, not a text.
    """

    name: str
    label: str
    kind: str = "text"
    value: Any = ""
    options: Sequence[tuple[str, str]] = ()
    help: str = ""
    required: bool = False
    least: float | None = None
    most: float | None = None
    code: bool = False


def text_of(form: Mapping[str, str], name: str, *, most: int = 100_000) -> str:
    """Return a text of a form; "" if it is not there.

    Raises:
        InvalidArgument: It is too long.
    """
    found = form.get(name, "").replace("\r\n", "\n")
    if len(found) > most:
        raise InvalidArgument(f"{name} has {len(found)} characters; at most {most} are taken")
    return found


def whole_of(form: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a form; None if the field is empty.

    Raises:
        InvalidArgument: It is none.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        if len(text) > 30:
            raise ValueError
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name} = {shown(text)} is not a whole number") from None


def number_of(form: Mapping[str, str], name: str) -> float | None:
    """Return a number of a form; None if the field is empty.

    Raises:
        InvalidArgument: It is none.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        found = float(text)
        if len(text) > 30 or found != found or found in (float("inf"), float("-inf")):
            raise ValueError
        return found
    except ValueError:
        raise InvalidArgument(f"{name} = {shown(text)} is not a number") from None


def key_of(form: Mapping[str, str]) -> Key | None:
    """Return the key of a form, by its fields ``key`` and ``key_is``; None if it has none.

    Raises:
        InvalidArgument: The text is not what ``key_is`` says.
    """
    text, kind = form.get("key", ""), form.get("key_is", "")
    if not text:
        return None
    if kind == "number":
        return whole_of(form, "key")
    if kind != "hex":
        return text
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgument(f"key = {shown(text)} is not bytes as hex digits") from None


def checked_of(form: Mapping[str, str], name: str) -> bool:
    """Return whether a box of a form is checked."""
    return form.get(name) == "on"


def confirm(form: Mapping[str, str], wanted: str) -> None:
    """Return if the name of what is to be taken away was typed.

    Raises:
        InvalidArgument: Something else was.
    """
    given = form.get("confirm", "").strip()
    if given != wanted:
        raise InvalidArgument(f"type {wanted!r} to confirm; {shown(given)} was typed")
