"""How a command says what it prints with ``--json``: one word for each kind of value."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

Schema = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
TRUTH: Final[Schema] = {"type": "boolean"}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    types = schema["type"]
    return {**schema, "type": [*([types] if isinstance(types, str) else types), "null"]}


def some(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(**fields: Schema) -> Schema:
    """Return the schema of an object that has all these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def having(schema: Schema, **fields: Schema) -> Schema:
    """Return the schema of an object with more fields."""
    return record(**schema["properties"], **fields)


def optional(schema: Schema, **fields: Schema) -> Schema:
    """Return the schema of an object with more fields that it may lack."""
    return {**schema, "properties": {**schema["properties"], **fields}}


def mapping(schema: Schema) -> Schema:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": schema}


def shows(schema: Schema, **with_options: Schema) -> Callable[[F], F]:
    """Say what a command prints with ``--json``, and what with further options, by their names.

    For a command that prints a line for each message, ``schema`` is that of a line.
    """

    def decorate(function: F) -> F:
        vars(function)["schemas"] = {"": schema, **with_options}
        return function

    return decorate
