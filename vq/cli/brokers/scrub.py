"""``vq cluster scrub``: how far nodes are with verifying all that they store."""

from typing import Any, Final

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Invocation, command_options
from vq.cli.base.text import utc
from vq.operations.base.sizes import bytes_text
from vq.operations.brokers.scrubs import Scrub, scrubs


def _running(found: Scrub) -> bool | None:
    return None if found.error else found.running


_SCRUB: Final = Shape(
    Scrub,
    "group node read_bytes stored_bytes bytes_per_s damaged_ranges repairs error? begun_s ended_s "
    "next_s running=",
    running=_running,
)


@click.command()
@shows(some(_SCRUB))
@command_options
def scrub(invocation: Invocation) -> None:
    """Show how far each node is with verifying all that it stores.

    Nodes do so slowly, again and again (their settings scrub_bytes_per_s and scrub_interval_s).
    `read` of `stored` is how far the pass is, `ended` when it ended; a pass that goes on has
    none. `next` is when the next one begins. `damaged` counts the ranges that are damaged now,
    `repaired` those since the start.

    Exit code 1 if a node does not answer, or something is damaged.
    """

    found = invocation.call(scrubs)
    output = invocation.output
    if not output.document(_SCRUB.all(found)):
        shown = "begun ended next read stored rate damaged repaired"
        rows = [_row(each) for each in found]
        output.table(
            rows,
            columns=f"group node {shown} error",
            optional="begun ended next read error",
        )
    silent = sum(1 for each in found if each.error)
    damaged = sum(each.damaged_ranges or 0 for each in found)
    if silent or damaged:
        raise CommandFailed(
            f"{damaged} range(s) are damaged, {silent} of {len(found)} node(s) do not answer; "
            "docs/howto/repair-damage.md says what to do"
        )


def _row(found: Scrub) -> dict[str, Any]:
    rate = found.bytes_per_s
    told = {
        "begun": _time(found.begun_ms),
        "ended": _time(found.ended_ms),
        "next": _time(found.next_ms),
        "read": None if found.read_bytes is None else bytes_text(found.read_bytes),
    }
    if found.error:  # what there is not yet is no value; what nobody told is unknown
        told = dict.fromkeys(told, "unknown")
    return {
        "group": found.group,
        "node": found.node,
        **told,
        "stored": bytes_text(found.stored_bytes),
        "rate": "off" if rate == 0 else None if rate is None else f"{bytes_text(rate)}/s",
        "damaged": found.damaged_ranges,
        "repaired": found.repairs,
        "error": found.error or None,
    }


def _time(ms: int | None) -> str | None:
    return None if ms is None else utc(ms)
