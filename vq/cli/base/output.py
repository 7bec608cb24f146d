"""How commands print: tables on a terminal, tab-separated lines in a pipe, JSON when asked.

A command hands over values; this module decides how they look. Results go to standard output;
progress and remarks go to standard error, so that a pipe carries results only. An unknown value is
None: ``unknown`` for people, ``null`` in JSON, never 0.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from vq.cli.base.text import json_text, safe

if TYPE_CHECKING:
    from rich.console import RenderableType

#: What a cell may hold.
Value = str | int | float | bool | None
#: Wider than any table, to measure the width that one needs.
_ENDLESS = 100_000
_BAR_WIDTH: Final = 20
#: Beside text and bar a progress line has a count, the time, and place for the ``^C`` that a
#: terminal writes behind it: a line that is full would be broken and not erased.
_NUMBERS_WIDTH: Final = 30
_WORDS_MIN: Final = 12


class Output:
    """Where one command prints. ``as_json`` prints documents; otherwise the stream decides."""

    def __init__(
        self, *, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr

    @property
    def to_terminal(self) -> bool:
        """Whether results are laid out for a terminal."""
        return not self.as_json and self._stdout.isatty()

    def table(
        self,
        rows: Sequence[Mapping[str, Value]],
        *,
        columns: str,
        optional: str = "",
    ) -> None:
        """Print rows that all have the keys ``columns``, a text; JSON is a list of objects.

        A column has the name of its field in JSON and in ``record``.
        A row may have more keys than are shown as columns: JSON has them all. Where a terminal is
        too narrow for the columns, each row is a block of lines instead: nothing is left out.
        None in a column of ``optional`` means no value, not an unknown one: ``-`` for people.
        """
        if self.document(list(rows)):
            return
        names, may_lack = columns.split(), optional.split()
        rows = [
            {key: "-" if v is None and key in may_lack else v for key, v in row.items()}
            for row in rows
        ]
        if self._stdout.isatty():
            self._rich_table(rows, names)
        else:
            self._line("\t".join(names))
            for row in rows:
                self._line("\t".join(_plain(row[name]) for name in names))

    def record(self, values: Mapping[str, Any], *, shown: str | None = None) -> None:
        """Print the fields of one thing, one a line; JSON is one object with all of them."""
        if self.document(values):
            return
        names = list(values) if shown is None else shown.split()
        width = max(map(len, names), default=0) if self._stdout.isatty() else 0
        for name in names:
            separator = "  " if width else "\t"
            self._line(f"{name.ljust(width)}{separator}{_plain(values[name])}")

    def document(self, value: Any, *, always: bool = False) -> bool:
        """Print one JSON document, indented for a terminal and one line for a pipe.

        Without JSON print nothing, and return False: people are told in another way. ``always``
        prints it without ``--json``, too.
        """
        if self.as_json or always:
            indent = 2 if self._stdout.isatty() else None
            self._line(json_text(value, indent=indent, ascii_only=not _takes_all(self._stdout)))
        return self.as_json

    def line(self, text: str) -> None:
        """Print one line of the result. JSON commands use ``document``."""
        self._line(safe(text))

    def title(self, text: str) -> None:
        """Print a line above a table when there are several; nothing in JSON."""
        if not self.as_json:
            self._line(safe(text))

    def remark(self, text: str) -> None:
        """Print one line for people, on standard error, that is not part of the result.

        With JSON it is an object: everything on standard error is one object a line then.
        """
        line = json_text({"remark": text}, ascii_only=True) if self.as_json else safe(text)
        print(line, file=self._stderr, flush=True)

    def failure(self, text: str, as_json: str) -> None:
        """Print one of several failures on standard error: a line, or a JSON object."""
        print(as_json if self.as_json else safe(text), file=self._stderr, flush=True)

    @contextlib.contextmanager
    def progress(
        self,
        what: str,
        done: Callable[[], int],
        *,
        total: int | None = None,
        portion: Callable[[], float] | None = None,
        shared: bool = False,
    ) -> Iterator[None]:
        """Show progress while the block runs, only on a terminal.

        Args:
            what: The text before the bar.
            done: Returns how much is done. Asked for each picture, some times a second and in
                another thread: a step of the work itself costs nothing.
            total: How much there is to do; None: nobody knows.
            portion: Where ``total`` is unknown, returns which part is done, 0 to 1.
            shared: Somebody types on that terminal; nothing is shown.
        """
        if self.as_json or shared or not self._stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        class Asking(Progress):
            def get_renderables(self) -> "Iterable[RenderableType]":
                count = done()
                for task in self.tasks:
                    part = None if portion is None else portion()
                    self.update(
                        task.id,
                        completed=count if part is None else part,
                        count=f"{count}/{total or '?'}" if part is None else f"{count} {part:4.0%}",
                    )
                yield from super().get_renderables()

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(_BAR_WIDTH),
            TextColumn("{task.fields[count]}"),
            Elapsed(),
        )
        console = Console(file=self._stderr)
        left = max(_WORDS_MIN, console.width - _BAR_WIDTH - _NUMBERS_WIDTH)
        shown_what = what if len(what) <= left else what[: left - 3] + "..."
        with Asking(*columns, console=console, transient=True) as shown:
            shown.add_task(shown_what, total=total if portion is None else 1.0, count="")
            yield

    def _rich_table(self, rows: Sequence[Mapping[str, Value]], columns: Sequence[str]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            number = any(_is_number(row[column]) for row in rows)
            table.add_column(
                column,
                justify="right" if number else "left",
                overflow="fold",  # rather than leave out characters of an address
                no_wrap=column != columns[-1],  # long texts stand in the last one
            )
        for row in rows:
            table.add_row(*(Text(_pretty(row[column])) for column in columns))
        console = Console(file=self._stdout)
        endless = console.options.update(width=_ENDLESS)
        # Only the last column may be broken, between words. Rich's own minimum breaks all columns.
        last = [columns[-1], *(_pretty(row[columns[-1]]) for row in rows)]
        spared = max(map(cell_len, last)) - max(cell_len(w) for text in last for w in text.split())
        if Measurement.get(console, endless, table).maximum - spared <= console.width:
            console.print(table)
        else:
            self._blocks(rows, columns)

    def _blocks(self, rows: Sequence[Mapping[str, Value]], columns: Sequence[str]) -> None:
        """Print each row as lines of name and value, with an empty line between rows."""
        width = max(map(len, columns))
        for number, row in enumerate(rows):
            if number:
                self._line("")
            for column in columns:
                self._line(f"{column.ljust(width)}  {_pretty(row[column])}")

    def _line(self, text: str) -> None:
        self._stdout.write(text + "\n")
        self._stdout.flush()


def _takes_all(stream: TextIO) -> bool:
    """Whether a stream takes every character; one in ASCII would write invalid JSON."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "").startswith("utf")


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return _plain([f"{key}: {_plain(each)}" for key, each in value.items()])
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "-"
    return safe(str(value))


def _pretty(value: Value) -> str:
    """Return a cell; a whole number has no separators: it can be pasted back into a command."""
    return f"{value:.3f}" if isinstance(value, float) else _plain(value)
