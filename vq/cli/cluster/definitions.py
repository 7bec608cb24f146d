"""``vq cluster export`` and ``import``: what defines a cluster, in one file."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, record, shows, some
from vq.cli.base.new_file import check_new, write_new
from vq.cli.base.options import Invocation, command_options, flag, yes_option
from vq.client.cluster import ClusterClient
from vq.errors import InvalidArgument
from vq.operations.cluster.definition_file import (
    Definitions,
    definitions_from,
    definitions_json,
)
from vq.operations.cluster.definitions import (
    DefinitionAction,
    DefinitionStep,
    PlannedDefinitions,
    export_definitions,
    import_definitions,
    plan_import_definitions,
)

_STEP: Final = Shape(DefinitionStep, "kind name action changes why_not?")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@flag("--offsets", "Groups with their committed offsets, of this cluster only.")
@shows(record(file=str, bytes=int, broker_groups=int, topics=int, groups=int))
@command_options
def export(invocation: Invocation, file: Path, offsets: bool) -> None:
    """Write what defines the cluster into a new JSON FILE, which people can read and edit.

    Settings of the cluster, pools and labels of broker groups, topics with their settings, and
    groups of consumers. Messages, placements and members are not in it.
    """
    check_new(file)

    async def work(cluster: ClusterClient) -> tuple[Definitions, int]:
        found = await export_definitions(cluster, with_offsets=offsets)

        async def lines() -> AsyncIterator[str]:
            yield json.dumps(definitions_json(found), indent=2, ensure_ascii=False) + "\n"

        _, size = await write_new(file, lines())
        return found, size

    found, size = invocation.call(work)
    invocation.output.record(
        {
            "file": str(file),
            "bytes": size,
            "broker_groups": len(found.broker_groups or ()),
            "topics": len(found.topics or ()),
            "groups": len(found.groups or ()),
        }
    )


@click.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@flag("--prune", "Delete topics and groups that are not in FILE.")
@flag("--offsets", "Groups that are made get the offsets that FILE has.")
@yes_option
@shows(record(done=bool, made=int, changed=int, left=int, deleted=int, steps=some(_STEP)))
@command_options
def import_(invocation: Invocation, file: Path, prune: bool, offsets: bool, yes: bool) -> None:
    """Make and change topics, groups, pools and settings as a FILE says.

    The FILE is one of `vq cluster export`, of this cluster or another one, or written by hand. A
    section that it lacks is left as it is; nothing is deleted without --prune. Without --yes only
    the plan is shown. If something has changed since the plan was made, nothing is done.

    Exit code 1 if something cannot be as the FILE says; the rest is done.
    """
    definitions = _read(file)

    async def work(
        cluster: ClusterClient,
    ) -> tuple[PlannedDefinitions, list[DefinitionStep]]:
        planned = await plan_import_definitions(
            cluster, definitions, prune=prune, with_offsets=offsets
        )
        if yes:
            return planned, await import_definitions(cluster, planned)
        return planned, list(planned.steps)

    planned, steps = invocation.call(work)
    output = invocation.output
    failed = [each for each in steps if each.why_not]
    if not output.document(
        {
            "done": yes,
            "made": planned.count(DefinitionAction.MAKE),
            "changed": planned.count(DefinitionAction.CHANGE),
            "left": planned.count(DefinitionAction.LEAVE),
            "deleted": planned.count(DefinitionAction.DELETE),
            "steps": [_STEP(each) for each in steps],
        }
    ):
        output.table(
            [_row(each) for each in steps if _is_shown(each)],
            columns="action kind name changes",
        )
        left = sum(not _is_shown(each) for each in steps)
        output.remark(f"{left} thing(s) are as the file says")
    if not yes:
        invocation.only_planned()
    if failed:
        raise CommandFailed(
            f"{len(failed)} of {len(steps)} thing(s) cannot be as the file says, see above"
        )


def _read(file: Path) -> Definitions:
    """Return the definitions in a file.

    Raises:
        InvalidArgument: They are none.
    """
    try:
        return definitions_from(json.loads(file.read_text("utf-8")))
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{file} is no JSON document: {error}") from error


def _is_shown(step: DefinitionStep) -> bool:
    return step.action is not DefinitionAction.LEAVE or bool(step.why_not)


def _row(step: DefinitionStep) -> dict[str, str]:
    changes = ", ".join(f"{each.field}: {each.before} -> {each.after}" for each in step.changes)
    why = f"not done: {step.why_not}" if step.why_not else ""
    return {
        "action": str(step.action),
        "kind": step.kind.replace("_", " "),
        "name": step.name or "-",
        "changes": "; ".join(each for each in (changes, why) if each) or "-",
    }
