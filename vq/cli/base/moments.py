"""Moments on the command line: a time, or how long ago it was."""

import re
import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from vq.cli.base.options import Seconds
from vq.cli.base.text import utc
from vq.limits import DELAY_S_MAX

_AGO: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(click.ParamType[int]):
    """A time as ISO 8601, taken as UTC when it names no zone; or so long ago: ``90s``, ``2h``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970 UTC."""
        text = str(value)
        ago = _AGO.fullmatch(text)
        try:
            if ago:
                moment_ms = int(time.time() * 1000) - int(ago[1]) * _UNIT_MS[ago[2]]
            else:
                moment = datetime.fromisoformat(text)
                if moment.tzinfo is None:
                    moment = moment.replace(tzinfo=UTC)
                moment_ms = int(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            moment_ms = -1
        if moment_ms < 0:
            self.fail(
                f"{value!r} is not a time like 2026-11-22T09:30 or 2026-11-22T09:30:00+01:00, and "
                "not so long ago, like 90s, 15m, 2h or 7d"
            )
        return moment_ms


class Delay(Seconds):
    """A number of seconds within bounds, or so long: ``90s``, ``15m``, ``2h``, ``7d``."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        text = str(value)
        long = _AGO.fullmatch(text)
        try:
            seconds = int(long[1]) * _UNIT_MS[long[2]] / 1_000 if long else float(text)
        except ValueError:
            self.fail(
                f"{value!r} is no number of seconds, and not so long, like 90s, 15m, 2h or 7d"
            )
        return super().convert(seconds, param, ctx)


class LaterMoment(click.ParamType[float]):
    """A time ahead as ISO 8601, taken as UTC when it names no zone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds since 1970 UTC."""
        if isinstance(value, float):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
            moment = moment.replace(tzinfo=moment.tzinfo or UTC)
            seconds = moment.timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time like 2026-11-22T09:30 or 2026-11-22T09:30:00+01:00")
        left = seconds - time.time()
        if not 0 < left <= DELAY_S_MAX:
            self.fail(f"{value} is {left:.0f} s ahead; give a time up to 40 days ahead")
        return seconds


def check_span(since_ms: int | None, until_ms: int | None) -> None:
    """Refuse ``--since`` and ``--until`` with no time between them.

    Raises:
        click.UsageError: Of ``30m`` and ``2h`` the first is the later one.
    """
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise click.UsageError(
            f"--since, {utc(since_ms)}, is not before --until, {utc(until_ms)}: no message is "
            "stored between them"
        )
