"""``vq group create``, ``clone``, ``export`` and ``import``: a group before its first member."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.base.completion import group_names
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.moments import Moment
from vq.cli.base.options import Invocation, WholeNumber, command_options, flag, option, yes_option
from vq.cli.groups.group_reset import COLUMNS, RESET, target_of
from vq.cli.groups.group_terms import (
    TERMS,
    TopicFilter,
    failure_options,
    model_option,
    offset_store_option,
    terms_options,
    topics_read,
)
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import ZOOKEEPER, FailurePolicy
from vq.errors import InvalidArgument
from vq.operations.groups.making import (
    ExportedOffset,
    GroupExport,
    PlannedGroup,
    export_group,
    make_group,
    plan_clone_group,
    plan_create_group,
    plan_import_group,
)
from vq.operations.groups.terms import GroupTerms, given_terms, terms_of
from vq.shown import shown_error

#: The version of the document that `vq group export` writes; before it, there were no terms.
_EXPORT_VERSION: Final = 2
_PLANNED: Final = Shape(
    PlannedGroup,
    "group is_new topics partitions=offsets",
    topics=topics_read,
    partitions=RESET,
)
_MADE: Final = record(done=bool, **_PLANNED.fields)
#: The terms of an export: all but a roll, which is of the group's present members.
_TERMS: Final = tuple(name for name in TERMS.fields if not name.startswith("roll"))
_EXPORT: Final = Shape(
    GroupExport,
    f"group time_s start topics {' '.join(f'{each}=terms.{each}' for each in _TERMS)} offsets",
    topics=topics_read,
)


@click.command()
@click.argument("name", shell_complete=group_names)
@option(
    "--topic TOPIC[=FILTER] ... as filters",
    "What it reads, such as 'orders=paid || sent', or 'orders.*' for all topics whose names "
    "match; may repeat.",
    TopicFilter(),
    required=True,
)
@flag("--to-earliest", "It begins at the oldest message kept.")
@flag("--to-latest", "It begins at the end.")
@option(
    "--to-time",
    "It begins at the first message stored at or after this time, or so long ago.",
    Moment(),
)
@option("--offset", "It begins at this offset, of one partition.", WholeNumber(min=0))
@option(
    "--start",
    "Where it begins in partitions that come later.",
    ["earliest", "latest"],
    default="earliest",
)
@model_option
@terms_options
@offset_store_option
@failure_options
@yes_option
@shows(_MADE)
@command_options
def create(
    invocation: Invocation,
    name: str,
    filters: Sequence[tuple[str, str]],
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    offset: int | None,
    start: str,
    yes: bool,
    **given: Any,
) -> None:
    """Make a consumer group without members, with chosen offsets.

    Its members must have the same filters and terms. Members of a broadcasting group begin where
    each of them says: give --to-earliest. From then on a topic with the retention policy
    keep waits for it.
    """
    target = target_of(
        {
            "to_earliest": to_earliest,
            "to_latest": to_latest,
            "to_time": to_time,
            "offset": offset,
        }
    )
    terms = given_terms(**given)

    async def plan(cluster: ClusterClient) -> PlannedGroup:
        return await plan_create_group(cluster, name, dict(filters), target, start=start, **terms)

    _make(invocation, plan, yes=yes)


@click.command()
@click.argument("source", shell_complete=group_names)
@click.argument("name")
@yes_option
@shows(_MADE)
@command_options
def clone(invocation: Invocation, source: str, name: str, yes: bool) -> None:
    """Make a group NAME that is where the group SOURCE is, with the same topics and terms.

    What the members of SOURCE have handled and not yet committed, NAME reads again.
    """

    async def plan(cluster: ClusterClient) -> PlannedGroup:
        return await plan_clone_group(cluster, source, name)

    _make(invocation, plan, yes=yes)


@click.command()
@click.argument("name", shell_complete=group_names)
@shows(record(v=int, **_EXPORT.fields))
@command_options
def export(invocation: Invocation, name: str) -> None:
    """Print a group and where it is, as a JSON document that `vq group import` reads.

    It is JSON with and without --json, and has the group's topics, terms and offsets. What members
    have handled and not yet committed is not in it. If another store than ZooKeeper has the
    offsets, they are the members' copies of them.
    """
    found = invocation.call(export_group, name)
    invocation.output.document({"v": _EXPORT_VERSION, **_EXPORT(found)}, always=True)


@click.command(name="import")
@click.argument("name", shell_complete=group_names)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@flag("--fence", "Also while members are alive; see `vq group reset`.")
@yes_option
@shows(_MADE)
@command_options
def import_(invocation: Invocation, name: str, file: Path, fence: bool, yes: bool) -> None:
    """Set where a group goes on, as the FILE of an export says; make the group if it is not there.

    A group that is made has the topics and terms of the export. A file of an earlier vq has no
    terms but the offset store: the group is clustering, orderly and strict, shares out by sticky,
    and holds what fails.
    A topic that was deleted and made anew since the export is refused, and so is an offset that its
    partition does not keep any more.
    """
    exported = _read(file)

    async def plan(cluster: ClusterClient) -> PlannedGroup:
        return await plan_import_group(cluster, exported, name)

    _make(invocation, plan, yes=yes, fence=fence)


def _read(file: Path) -> GroupExport:
    """Return the export in a file.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        document = json.loads(file.read_text("utf-8"))
        if document["v"] not in {1, _EXPORT_VERSION}:
            raise InvalidArgument(
                f"{file} has format v{document['v']}, this vq reads v1 and v{_EXPORT_VERSION}"
            )
        return GroupExport(
            group=document["group"],
            time_ms=int(document["time_s"] * 1000),
            start=document["start"],
            topics={each["topic"]: each["filter"] or "" for each in document["topics"]},
            offsets=tuple(map(_offset, document["offsets"])),
            terms=_terms(document),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"{file} is no export of a group: {shown_error(error)}") from error


def _offset(values: Mapping[str, Any]) -> ExportedOffset:
    """Return one offset in an export; an earlier vq named nothing ahead of it."""
    ahead = tuple((offset, id) for offset, id in values.get("ahead", ()))
    return ExportedOffset(**{**values, "ahead": ahead})


def _terms(document: Mapping[str, Any]) -> GroupTerms:
    """Return the terms in an export; what an earlier vq left out has its default."""
    if document["v"] == 1:
        store = document.get("offset_store", ZOOKEEPER)
        return replace(terms_of(ConsumerGroup()), offset_store=store)
    terms = {name: document[name] for name in _TERMS}
    return GroupTerms(**{**terms, "failure": FailurePolicy.from_json(terms["failure"])})


def _make(invocation: Invocation, plan: Any, *, yes: bool, fence: bool = False) -> None:
    async def work(cluster: ClusterClient) -> PlannedGroup:
        planned: PlannedGroup = await plan(cluster)
        if yes:
            await make_group(cluster, planned, fence=fence)
        return planned

    planned, output = invocation.call(work), invocation.output
    if not output.document({"done": yes, **_PLANNED(planned)}):
        what = "make" if planned.is_new else "set the offsets of"
        output.remark(f"plan: {what} group {planned.group}, topics {', '.join(planned.topics)}")
        output.table(RESET.all(planned.offsets), columns=COLUMNS)
    if not yes:
        invocation.only_planned()
    elif not output.as_json:
        output.remark(f"done: group {planned.group} begins there")
