"""What each command prints with ``--json``, as JSON Schema: for programs that read it.

A command says it of itself (``json_schema.shows``). ``make docs`` writes one file for each into
docs/reference/json; tests compare real output with them. Later versions may add fields, and never
change or take away those that are here.

The rules: a truth value is true or false, a size is in bytes (``_bytes``, or the name says it), a
time is in seconds (``_s``; a moment counts from 1970, UTC), nothing and unknown are null, several
things are a list. What may exceed 2**53 is text.
"""

from collections.abc import Iterator
from functools import cache

from vq.cli.base.json_schema import Schema, maybe, record, schema_of
from vq.cli.main import commands


@cache
def schemas() -> dict[str, Schema]:
    """Return the schema of each command by its name, and of the lines of standard error.

    With ``--OPTION`` behind the name where an option changes what is printed.
    """
    return {**dict(_of_commands()), **{name: schema_of(each) for name, each in _LINES.items()}}


def _of_commands() -> Iterator[tuple[str, Schema]]:
    for name, command in commands():
        for option, kind in getattr(command.callback, "schemas", {}).items():
            yield f"{name} --{option}" if option else name, schema_of(kind)


_LINES = {
    "error": record(
        error=str,
        outcome=str,
        message=str,
        status=maybe(int),
        hint=str,
        retriable=bool,
        details={"type": "object"},
    ),
    "remark": record(remark=str),
}
