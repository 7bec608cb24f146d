"""Compares JSON with the schemas of ``vq.cli.schemas``: strictly, with no field that is not there.

It knows the words of JSON Schema that they use, and refuses others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vq.cli.schemas import schemas

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_WORDS = {"type", "properties", "required", "items", "additionalProperties"}


def schema_of(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return the schema of what a command line prints with ``--json``."""
    known, both = schemas(), " ".join(arguments[:2])
    for option in ("--all", "--content", "--delete", "--deleted", "--partitions", "--topics"):
        if option in arguments and f"{both} {option}" in known:
            both += f" {option}"
    return known[both if both in known else arguments[0]]


def wrong(value: Any, schema: Mapping[str, Any], where: str = "$") -> Iterator[str]:
    """Yield what does not fit, with its place."""
    assert set(schema) <= _WORDS, schema
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    fits = any(isinstance(value, _KINDS[kind]) for kind in kinds)
    if not fits or (isinstance(value, bool) and "boolean" not in kinds):
        yield f"{where} is {value!r}, not {kinds}"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from wrong(each, schema["items"], f"{where}[{number}]")
    elif isinstance(value, dict):
        yield from _wrong_fields(value, schema, where)


def _wrong_fields(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where} lacks {name}"
    for name, each in value.items():
        inner = known.get(name, schema.get("additionalProperties"))
        if inner is not None:
            yield from wrong(each, inner, f"{where}.{name}")
        elif known:
            yield f"{where} has {name}, which is not in the schema"
