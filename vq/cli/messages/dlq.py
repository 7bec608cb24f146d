"""``vq dlq``: the dead letters of consumer groups: listed, read, sent again, given up for good."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from vq.cli.base import text
from vq.cli.base.completion import dead_letter_groups, topic_names
from vq.cli.base.errors import CommandFailed, check_known_ids
from vq.cli.base.json_schema import (
    MESSAGE_SCHEMA,
    Shape,
    as_text,
    having,
    maybe,
    record,
    shows,
    some,
)
from vq.cli.base.moments import Moment, check_span
from vq.cli.base.options import (
    Commands,
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    ids_option,
    option,
    together,
    yes_option,
)
from vq.cli.messages.message_format import key_text
from vq.client.cluster import ClusterClient
from vq.operations.messages.dead_letters import (
    DeadLetter,
    DeadLetters,
    look_at_dead_letters,
    read_dead_letters,
)
from vq.operations.messages.resending import (
    RATE,
    RATE_MAX,
    delete_dead_letters,
    resend_dead_letters,
)
from vq.operations.messages.settling import LetterState

LIMIT: Final = 1_000
_GROUP: Final = click.argument("group", shell_complete=dead_letter_groups)


@click.group(cls=Commands)
def dlq() -> None:
    """List, read, resend and delete the dead letters of consumer groups."""


def _choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose letters."""
    return together(
        ids_option,
        option("--reason TEXT", "Whose reason has this text, in any case."),
        option(
            "--since as since_ms",
            "Given up at or after this time, such as 15m (ago) or 2026-11-22T09:30.",
            Moment(),
        ),
        option("--until as until_ms", "Given up before this time.", Moment()),
    )(function)


# list, read -----------------------------------------------------------------------------------
_COUNTS: Final = tuple(str(each) for each in LetterState)
_LETTER: Final = Shape(
    DeadLetter,
    "group partition=message.partition offset=message.offset state "
    "given_up_s=message.append_time_ms origin origin_number=origin.number id=message.id "
    "attempts=failure.attempts first_failed_s=failure.first_ms reason=failure.reason "
    "raw_bytes=failure.raw_bytes settled_by=settled.by settled_s=settled.time_ms",
    origin=as_text,
    id=as_text,
)


@dlq.command(name="list")
@shows(
    some(
        record(
            group=str,
            topic=str,
            oldest_s=maybe(float),
            **dict.fromkeys(_COUNTS, int),
        )
    )
)
@command_options
def list_(invocation: Invocation) -> None:
    """List the groups with dead letters, and how many are in which state.

    `open`: nothing was done about them; `resending`: `vq dlq resend` was interrupted, and finishes
    them when it is repeated. All letters are read for that.

    Exit code 1 if letters of a group cannot be read: the group is left out.
    """
    found, failed = invocation.call(look_at_dead_letters)
    output = invocation.output
    if not output.document(
        [{**_counts(each), "oldest_s": text.in_seconds(each.oldest_ms)} for each in found]
    ):
        moments = [None if each.oldest_ms is None else text.utc(each.oldest_ms) for each in found]
        rows = [{**_counts(each), "oldest": at} for each, at in zip(found, moments, strict=True)]
        output.table(rows, columns=f"group {' '.join(_COUNTS)} oldest", optional="oldest")
        if not (rows or failed):
            output.remark("no group has dead letters")
    for error in failed:
        output.remark(error.message)
    if failed:
        raise CommandFailed(
            f"{len(failed)} group(s) are left out, since their letters cannot be read now; `vq "
            "cluster status` shows which brokers are up"
        )


def _counts(found: DeadLetters) -> dict[str, Any]:
    counts = {str(state): found.letters[state] for state in LetterState}
    return {"group": found.group, "topic": found.topic, **counts}


@dlq.command()
@_GROUP
@_choice
@flag("--settled", "Also those that were sent again or deleted.")
@flag("--content", "The whole message, too.")
@option("--limit N", "Stop after so many.", WholeNumber(min=1), default=LIMIT)
@shows(_LETTER, content=having(_LETTER, message=MESSAGE_SCHEMA))
@command_options
def read(
    invocation: Invocation,
    group: str,
    reason: str | None,
    since_ms: int | None,
    until_ms: int | None,
    ids: tuple[int, ...],
    settled: bool,
    content: bool,
    limit: int,
) -> None:
    """Print dead letters of a group: from where, why, how often tried, and what became of them.

    `raw`: nobody could read a message there, and the letter has the beginning of so many bytes.

    With --json it prints a line for each.
    """
    check_span(since_ms, until_ms)
    output = invocation.output
    rows: list[dict[str, Any]] = []
    count = 0

    async def work(cluster: ClusterClient) -> None:
        nonlocal count
        found = read_dead_letters(
            cluster,
            group,
            reason=reason,
            since_ms=since_ms,
            until_ms=until_ms,
            ids=ids,
            settled=settled,
        )
        async with contextlib.aclosing(found):
            async for letter in found:
                count += 1
                if output.as_json:
                    line = {**_LETTER(letter), **_whole(letter, content)}
                    sys.stdout.write(text.json_text(line, ascii_only=True) + "\n")
                elif content:
                    own = {name: "-" if v is None else v for name, v in _as_row(letter).items()}
                    output.record({**own, **text.as_record(letter.message)})
                    output.line("")
                else:
                    rows.append(_as_row(letter))
                if count >= limit:
                    output.remark(f"stopped after {limit} letters (--limit)")
                    return

    invocation.call(work)
    if not (output.as_json or content):
        output.table(rows, columns=_READ_COLUMNS, optional=_OPTIONAL)
    if not count:
        which = "dead letter" if settled else "open dead letter"
        more = "" if settled else "; --settled shows those that were sent again or deleted, too"
        output.remark(f"found no {which} of group {group}{more}")
    sys.stdout.flush()


_READ_COLUMNS: Final = "letter state given_up origin id key attempts raw reason"
_OPTIONAL: Final = "given_up origin key attempts raw reason"


def _as_row(letter: DeadLetter) -> dict[str, Any]:
    message, failure = letter.message, letter.failure
    given_up = message.append_time_ms
    return {
        "letter": f"{message.partition}:{message.offset}",
        "state": str(letter.state),
        "given_up": None if given_up is None else text.utc(given_up),
        "origin": None if letter.origin is None else str(letter.origin),
        "id": message.id,
        "key": key_text(message.key) or None,
        "attempts": None if failure is None else failure.attempts,
        "raw": None if failure is None else failure.raw_bytes,
        "reason": None if failure is None else failure.reason,
    }


def _whole(letter: DeadLetter, content: bool) -> dict[str, Any]:
    return {"message": text.as_fields(letter.message)} if content else {}


# resend, delete -------------------------------------------------------------------------------
class _Chosen(NamedTuple):
    """Letters before something is done with them: how many, and the ids of settled ones, too."""

    open: int
    resending: int
    ids: set[int]


async def _look(cluster: ClusterClient, group: str, **chosen: Any) -> _Chosen:
    counts = dict.fromkeys(LetterState, 0)
    ids = set[int]()
    settled = bool(chosen["ids"])  # a repeated command has settled what it names
    async for letter in read_dead_letters(cluster, group, **chosen, settled=settled):
        counts[letter.state] += 1
        if settled:
            ids.add(letter.message.id)
    return _Chosen(counts[LetterState.OPEN], counts[LetterState.RESENDING], ids)


def _check_known(group: str, ids: tuple[int, ...], chosen: _Chosen) -> None:
    listing = f"`vq dlq read {group} --settled`"
    check_known_ids(ids, chosen.ids, f"is among the chosen dead letters; {listing} shows all")


@dlq.command()
@_GROUP
@_choice
@option(
    "--to TOPIC", "Send them to this topic.  [where they come from]", shell_complete=topic_names
)
@option(
    "--rate N",
    "At most so many letters a second.",
    Seconds(0, RATE_MAX, min_open=True),
    default=RATE,
)
@yes_option
@shows(
    record(
        done=bool,
        group=str,
        open=int,
        resending=int,
        resent=int,
        finished=int,
        homeless=int,
    )
)
@command_options
def resend(
    invocation: Invocation,
    group: str,
    reason: str | None,
    since_ms: int | None,
    until_ms: int | None,
    ids: tuple[int, ...],
    to: str | None,
    rate: float,
    yes: bool,
) -> None:
    """Send open dead letters of a group again, each once, however often this is repeated.

    They go where they come from: every group that reads that topic gets them. After an interrupt or
    an error repeat the command: it first finishes what was begun.

    Exit code 1 if an id is that of no chosen letter, settled ones included: the others are done.
    """
    check_span(since_ms, until_ms)
    chosen: dict[str, Any] = {
        "reason": reason,
        "since_ms": since_ms,
        "until_ms": until_ms,
        "ids": ids,
    }

    async def work(cluster: ClusterClient) -> tuple[_Chosen, dict[str, Any]]:
        before = await _look(cluster, group, **chosen)
        values = {"group": group, "open": before.open, "resending": before.resending}
        if not yes:
            return before, {**values, "resent": 0, "finished": 0, "homeless": 0}
        done = await resend_dead_letters(cluster, group, **chosen, to=to, rate=rate)
        told = {"resent": done.resent, "finished": done.finished, "homeless": done.homeless}
        return before, {**values, **told}

    before, found = invocation.call(work)
    invocation.show_act(
        found,
        yes=yes,
        did=f"sent {found['resent']} dead letter(s) of {group} again, and finished "
        f"{found['finished']} that were begun before",
        plan=f"send {found['open']} dead letter(s) of {group} to "
        f"{to or 'where they come from'}, and finish {found['resending']} begun before",
    )
    if found["homeless"] and not invocation.output.as_json:
        invocation.output.remark(
            f"left {found['homeless']}: they are raw bytes, which are no message, or their "
            "topic or partition is not there, takes no messages, or none so large; --to TOPIC "
            "sends messages elsewhere"
        )
    _check_known(group, ids, before)


@dlq.command()
@_GROUP
@_choice
@yes_option
@shows(record(done=bool, group=str, letters=int))
@command_options
def delete(
    invocation: Invocation,
    group: str,
    reason: str | None,
    since_ms: int | None,
    until_ms: int | None,
    ids: tuple[int, ...],
    yes: bool,
) -> None:
    """Give up dead letters of a group for good: they are not listed, and never sent again.

    Their bytes stay, and `vq dlq read --settled` shows them. `vq topic alter --retention-hours`, or
    `vq topic delete`, of the topic that `vq dlq list --json` names, takes them away.

    Exit code 1 if an id is that of no chosen letter, settled ones included: the others are done.
    """
    check_span(since_ms, until_ms)
    chosen: dict[str, Any] = {
        "reason": reason,
        "since_ms": since_ms,
        "until_ms": until_ms,
        "ids": ids,
    }

    async def work(cluster: ClusterClient) -> tuple[_Chosen, int]:
        before = await _look(cluster, group, **chosen)
        if yes:
            return before, await delete_dead_letters(cluster, group, **chosen)
        return before, before.open + before.resending

    before, letters = invocation.call(work)
    invocation.show_act(
        {"group": group, "letters": letters},
        yes=yes,
        did=f"deleted {letters} dead letter(s) of {group}",
        plan=f"delete {letters} dead letter(s) of {group}; this cannot be undone",
    )
    _check_known(group, ids, before)
