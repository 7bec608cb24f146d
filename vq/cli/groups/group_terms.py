"""``vq group alter`` and ``vq group roll``: what the members of a group have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from vq.cli.base.completion import group_names
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    option,
    together,
)
from vq.cli.base.text import utc
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.group_terms import (
    ANY_STORE,
    MAX_ATTEMPTS_MAX,
    PAUSE_S_MAX,
    ZOOKEEPER,
    FailurePolicy,
    GroupModel,
    OnBadRecord,
    OnFailure,
    Ordering,
    WorkingMode,
)
from vq.operations.groups.terms import ROLL_S_MAX, GroupTerms, alter_group, end_roll, roll_group

TERMS: Final = Shape(GroupTerms)


class TopicRead(NamedTuple):
    """A topic that a group reads; ``filter`` None: all of it."""

    topic: str
    filter: str | None


def topics_read(topics: Mapping[str, str]) -> list[TopicRead]:
    """Return topics by name of a mapping of them to their filters."""
    return [TopicRead(topic, wanted or None) for topic, wanted in topics.items()]


class Pauses(click.ParamType[tuple[float, ...]]):
    """Numbers of seconds with commas between them."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not numbers of seconds like 0.5,2,10", param, ctx)


class TopicFilter(click.ParamType[tuple[str, str]]):
    """A topic or pattern, and a group's filter there: ``orders``, or ``orders=a || b``."""

    name = "topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return both; ``*`` if no filter is named."""
        if isinstance(value, tuple):
            return value
        topic, _, text = str(value).partition("=")
        return topic, text.strip() or "*"


def terms_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--mode``, ``--order`` and ``--strategy``."""
    return together(
        option(
            "--mode",
            "Which messages of a partition a member works on at the same time.",
            WorkingMode,
        ),
        option(
            "--order", "Whether a failed message may come after later ones (relaxed).", Ordering
        ),
        option("--strategy NAME", "How partitions are shared out."),
    )(function)


def failure_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of ``FailurePolicy``."""
    return together(
        option("--on-failure", "What follows the last try.", OnFailure),
        option(
            "--max-attempts N",
            "Tries of a listener in one delivery.",
            WholeNumber(1, MAX_ATTEMPTS_MAX),
        ),
        option(
            "--retry-backoff S,S,... as retry_backoff_s",
            "The pauses between these tries in seconds; the last one repeats.",
            Pauses(),
        ),
        option(
            "--retry-topic S,S,... as retry_topic_s",
            f"The delays in the retry topic, in seconds, at most {PAUSE_S_MAX:.0f} each.",
            Pauses(),
        ),
        option("--on-bad-record", "What follows a record that nobody can read.", OnBadRecord),
    )(function)


model_option = option(
    "--model",
    "Whether a partition is one member's (clustering), everybody's (broadcasting), or members "
    "share each partition, message by message (shared).",
    GroupModel,
)

offset_store_option = option(
    "--offset-store",
    "Where its offsets are from now on; any: where the next member keeps them.",
    [ANY_STORE, ZOOKEEPER],
)

_filter_option = option(
    "--filter TOPIC=FILTER ... as filters",
    "The filter in a topic, such as 'orders=paid || sent' or 'orders=WHERE price > 10'; * for "
    "all messages; may repeat. `vq group alter` also takes a pattern, such as 'orders.*=paid'.",
    TopicFilter(),
)


@click.command()
@click.argument("name", shell_complete=group_names)
@model_option
@terms_options
@_filter_option
@offset_store_option
@option(
    "--drop-pattern PATTERN ... as drop_patterns",
    "A pattern of topic names that it reads no longer; may repeat.",
)
@failure_options
@shows(record(group=str, **TERMS.fields))
@command_options
def alter(
    invocation: Invocation,
    name: str,
    filters: Sequence[tuple[str, str]],
    drop_patterns: Sequence[str],
    **given: Any,
) -> None:
    """Change what the members of a consumer group have in common.

    What follows a failed message, or a bad record, changes while members run: they follow. The
    model, the mode, the order, the strategy, filters and patterns change only while there is no
    member; `vq group roll` changes all but the model and patterns while there are. The offset store
    changes only while there is no member: the group goes on at the last copies of its offsets in
    ZooKeeper, which are exact if its members were closed.
    """
    if not (filters or drop_patterns) and all(each is None for each in given.values()):
        raise click.UsageError("nothing is to be changed: give an option")
    wanted = {"filters": dict(filters) or None, "drop_patterns": drop_patterns, **given}
    _show(invocation, name, invocation.call(alter_group, name, **wanted))


@click.command()
@click.argument("name", shell_complete=group_names)
@option(
    "--for SECONDS as for_s",
    "Let members of both versions in for so long.",
    Seconds(0, ROLL_S_MAX, min_open=True),
)
@terms_options
@_filter_option
@flag("--end", "The new version counts from now on.")
@flag("--cancel", "The old version stays, and counts alone.")
@shows(record(group=str, **TERMS.fields))
@command_options
def roll(
    invocation: Invocation,
    name: str,
    for_s: float | None,
    filters: Sequence[tuple[str, str]],
    end: bool,
    cancel: bool,
    **given: Any,
) -> None:
    """Change the terms of a group while it runs: members of two versions are let in for a while.

    Give --for and what is to differ, then start members of the new version and stop those of the
    old one. When the time is over, or with --end, the new terms are those of the group: members of
    the old version give up what they have in order and end with an error. With --cancel those of
    the new version do.
    """
    if sum((for_s is not None, end, cancel)) != 1:
        raise click.UsageError("give one of --for, --end and --cancel")
    if for_s is None and (filters or any(each is not None for each in given.values())):
        raise click.UsageError("--end and --cancel change nothing else")

    async def work(cluster: ClusterClient) -> GroupTerms:
        if for_s is None:
            return await end_roll(cluster, name, cancel=cancel)
        return await roll_group(cluster, name, for_s=for_s, filters=dict(filters), **given)

    _show(invocation, name, invocation.call(work))


def _pauses_text(pauses: Sequence[float]) -> str:
    return f"{', '.join(f'{each:g}' for each in pauses)} s"


def _failure_text(failure: FailurePolicy) -> dict[str, str]:
    """Return what follows a failed message, for people."""
    word = "attempt" if failure.max_attempts == 1 else "attempts"
    told = f"{failure.on_failure} after {failure.max_attempts} {word}"
    if failure.max_attempts > 1 or failure.on_failure == OnFailure.HOLD:
        told = f"{told}, pauses {_pauses_text(failure.retry_backoff_s)}"
    fields = {"failure": f"{told}; bad records: {failure.on_bad_record}"}
    if failure.on_failure == OnFailure.RETRY_TOPIC:
        again = _pauses_text(failure.retry_topic_s)
        fields["retry_topic"] = f"again after {again}, then a dead letter"
    return fields


def terms_text(terms: GroupTerms) -> dict[str, str]:
    """Return terms for people."""
    fields = {
        "model": terms.model,
        "mode": terms.mode,
        "order": terms.order,
        "strategy": terms.strategy,
        **_failure_text(terms.failure),
        "offset_store": terms.offset_store,
    }
    if terms.roll_until_ms is not None:
        new = ", ".join(f"{name} {value}" for name, value in terms.rolls_to.items())
        fields["rolls_to"] = f"{new}; both are let in until {utc(terms.roll_until_ms)}"
    return fields


def _show(invocation: Invocation, name: str, terms: GroupTerms) -> None:
    if not invocation.output.document({"group": name, **TERMS(terms)}):
        invocation.output.record({"group": name, **terms_text(terms)})
