"""Commands run in this process as ``vq`` runs them, and what they print."""

import io
import json
from collections.abc import Sequence
from typing import Any

import click
import pytest

from vq.cli.base import errors


def run_command(
    command: click.Command, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Run it; return exit code, standard output and standard error."""
    stderr = io.StringIO()
    code = errors.run(
        lambda: command.main(list(arguments), standalone_mode=False), as_json=False, stderr=stderr
    )
    shown = capsys.readouterr()
    return code, shown.out, shown.err + stderr.getvalue()


def refused(command: click.Command, arguments: Sequence[str], *, code: int) -> dict[str, Any]:
    """Run it with ``--json``; return the error that it ends with, with that exit code."""
    stderr = io.StringIO()
    ended = errors.run(
        lambda: command.main([*arguments, "--json"], standalone_mode=False),
        as_json=True,
        stderr=stderr,
    )
    assert ended == code
    return json.loads(stderr.getvalue())  # type: ignore[no-any-return]


def cells(out: str) -> list[dict[str, str]]:
    """The rows of a table that is no terminal's, by the names of its columns."""
    names, *rows = [line.split("\t") for line in out.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows]
