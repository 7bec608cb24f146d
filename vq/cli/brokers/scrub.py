"""``vq cluster scrub``: how far nodes are with verifying all that they store."""

from dataclasses import asdict
from typing import Any

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import maybe, record, shows, some
from vq.cli.base.options import Invocation, command_options
from vq.cli.base.text import in_seconds, utc
from vq.operations.base.sizes import bytes_text
from vq.operations.brokers.scrubs import Scrub, scrubs


@click.command()
@shows(
    some(
        record(
            group=str,
            node=str,
            read_bytes=maybe(int),
            stored_bytes=maybe(int),
            bytes_per_s=maybe(int),
            damaged_ranges=maybe(int),
            repairs=maybe(int),
            error=maybe(str),
            begun_s=maybe(float),
            ended_s=maybe(float),
            next_s=maybe(float),
            running=maybe(bool),
        )
    )
)
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
    if output.as_json:
        output.document([_json(each) for each in found])
    else:
        shown = ("begun", "ended", "next", "read", "stored", "rate", "damaged", "repaired")
        rows = [_row(each) for each in found]
        output.table(
            rows,
            columns=("group", "node", *shown, "error"),
            optional=("begun", "ended", "next", "read", "error"),
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


def _json(found: Scrub) -> dict[str, Any]:
    fields = asdict(found)
    times = {name: fields.pop(f"{name}_ms") for name in ("begun", "ended", "next")}
    return {
        **fields,
        **{f"{name}_s": in_seconds(ms) for name, ms in times.items()},
        "running": None if found.error else found.running,
        "error": found.error or None,
    }


def _time(ms: int | None) -> str | None:
    return None if ms is None else utc(ms)
