"""Log lines of a command: what others sent is in them, and a person or a program reads them."""

import json
import logging
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from vq.cli.base.text import SafeFormatter, json_text
from vq.log_lines import Line

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a command logs; an empty level is the command's own."""

    level: str = ""
    form: str = "text"

    def start(self, level: str = "warning", *, broker: str = "", process: str = "") -> None:
        """Send log lines to standard error.

        Args:
            level: The least one, unless the user gave another.
            broker: The name of the broker that this process is, for every line; "": a command.
            process: Which one of a worker it is, likewise.
        """
        handler = logging.StreamHandler(sys.stderr)
        who = {"broker": broker} if broker else {"process": process} if process else {}
        if self.form == "json":
            handler.setFormatter(JsonFormatter(who))
        elif who:
            told = " ".join(f"{key}={name}" for key, name in who.items())
            handler.setFormatter(
                SafeFormatter(f"%(asctime)s %(levelname)s {told} %(name)s: %(message)s")
            )
        else:
            handler.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=(self.level or level).upper(), handlers=[handler], force=True)


class JsonFormatter(logging.Formatter):
    """Log lines for programs: one JSON object a line.

    It has ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message`` (a constant text),
    ``fields`` (the values of this time), and with an exception ``exception`` (its traceback).
    """

    def __init__(self, who: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._who = dict(who or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = record.msg if isinstance(record.msg, Line) else None
        moment = datetime.fromtimestamp(record.created, UTC)
        values: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._who,
            "message": record.getMessage() if line is None else line.message,
            "fields": {}
            if line is None
            else {key: _value(each) for key, each in line.fields.items()},
        }
        if record.exc_info:
            values["exception"] = textwrap.dedent(self.formatException(record.exc_info))
        return json_text(values, ascii_only=True)


def _value(value: object) -> object:
    """Return the value of a field as JSON has it; what JSON does not have is text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        return ": ".join(filter(None, (type(value).__name__, str(value))))
    try:
        return value if isinstance(value, str) else json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)
