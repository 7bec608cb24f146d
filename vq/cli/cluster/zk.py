"""``vq zk``: the cluster's tree in ZooKeeper: checked, repaired, secured, exported, imported."""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, maybe, record, shows, some
from vq.cli.base.new_file import check_new, write_new
from vq.cli.base.options import Commands, Invocation, command_options, flag, option, yes_option
from vq.cli.base.output import Output
from vq.cli.base.text import in_seconds, utc
from vq.client.cluster import ClusterClient
from vq.coordination.tree.acls import checked_auth, identity_of
from vq.coordination.tree.coordinator import Acl
from vq.coordination.tree.values.identities import Identities
from vq.errors import InvalidArgument
from vq.operations.base.connect import cluster_client
from vq.operations.cluster.security_facts import plan_security
from vq.operations.tree.checking import (
    CheckedTree,
    RepairedNode,
    check_tree,
    plan_repair_tree,
    repair_tree,
)
from vq.operations.tree.copying import (
    ImportAction,
    ImportStep,
    PlannedImport,
    export_tree,
    import_tree,
    plan_import_tree,
)
from vq.operations.tree.document import TreeExport, read_tree
from vq.operations.tree.findings import TreeFinding
from vq.operations.tree.securing import (
    SecuredTree,
    identities_of,
    plan_secure_tree,
    secure_tree,
)
from vq.security.secret_files import read_secret_file

_CHECKED: Final = Shape(
    CheckedTree,
    "nodes errors warnings infos findings",
    findings=Shape(TreeFinding, "path problem severity text commands repair=repair_text?"),
)
_STEP: Final = Shape(ImportStep, "action path")
T = TypeVar("T")

SECRET_FILE: Final = click.Path(dir_okay=False, path_type=Path)
#: Bytes of a file with an identity.
_IDENTITY_BYTES_MAX: Final = 4_096
#: Steps of an import that a table for people has.
_STEPS_SHOWN: Final = 50


@click.group(cls=Commands)
def zk() -> None:
    """Check, repair, secure, export and import the cluster's tree in ZooKeeper."""


@zk.command()
@shows(_CHECKED)
@command_options
def check(invocation: Invocation) -> None:
    """Check every node of the tree: its value, and what it refers to. Changes nothing.

    It is no snapshot: what changes meanwhile may be found; check again. Exit code 1 if there is an
    error; warnings and remarks are none.
    """
    found = invocation.call(check_tree)
    output = invocation.output
    if not output.document(_CHECKED(found)):
        _show_findings(output, found)
    if found.errors:
        raise CommandFailed(f"{found.errors} of {found.nodes} nodes have errors")


_REPAIRED: Final = Shape(
    RepairedNode,
    "path=finding.path problem=finding.problem repair=finding.repair_text why_not?",
)


@zk.command()
@option(
    "--backup",
    "Export the tree into this new file before.  [vq-tree-CLUSTER-TIME.jsonl]",
    click.Path(dir_okay=False, path_type=Path),
)
@yes_option
@shows(record(done=bool, backup=maybe(str), repairs=some(_REPAIRED)))
@command_options
def repair(invocation: Invocation, backup: Path | None, yes: bool) -> None:
    """Repair what is safe and unambiguous of what `vq zk check` finds, after an export.

    That is: nodes that belong to no session and lie where only nodes of sessions do, offsets that
    a deleted topic left, and numbers that can be counted. Other findings name the command that
    mends them. A node that has changed since it was read is left as it is, and the command ends
    with 1.
    """
    if yes and backup is None:
        name = invocation.client_config().cluster
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        backup = Path(f"vq-tree-{name}-{now}.jsonl")
    if backup is not None:
        check_new(backup)

    async def work(cluster: ClusterClient) -> list[RepairedNode]:
        planned = await plan_repair_tree(cluster)
        if not yes or not planned:
            return [RepairedNode(each) for each in planned]
        assert backup is not None, "it has a name with --yes"
        await write_new(backup, export_tree(cluster))
        return await repair_tree(cluster, planned)

    found = invocation.call(work)
    output = invocation.output
    written = str(backup) if yes and found else None
    rows = _REPAIRED.all(found)
    if not output.document({"done": yes, "backup": written, "repairs": rows}):
        output.table(rows, columns=" ".join(_REPAIRED.fields), optional="why_not")
        if written is not None:
            output.remark(f"the tree as it was is in {written}")
    if not found:
        output.remark("there is nothing that can be repaired")
    elif not yes:
        invocation.only_planned()
    failed = sum(bool(each.why_not) for each in found)
    if failed:
        raise CommandFailed(f"{failed} of {len(found)} repairs are not done, see 'why_not'")


@zk.command()
@option(
    "--operators ...", "File with name:password of operators, who may do everything.", SECRET_FILE
)
@option("--brokers ...", "File with name:password of brokers.", SECRET_FILE)
@option(
    "--clients FILE[=GROUPS] ...",
    "File with name:password of producers and consumers, and the groups whose nodes they may "
    "write: names and patterns, separated by commas.  [*]",
)
@flag("--undo", "Let anybody do anything again.")
@yes_option
@shows(
    record(
        done=bool,
        secured=bool,
        nodes=int,
        open=int,
        others=int,
        wrong=some(record(path=str, found=str, wanted=str)),
    )
)
@command_options
def secure(
    invocation: Invocation,
    operators: tuple[Path, ...],
    brokers: tuple[Path, ...],
    clients: tuple[str, ...],
    undo: bool,
    yes: bool,
) -> None:
    """Let only those use the tree whom ZooKeeper knows: give each node its ACL.

    Without --yes only the plan is shown. Operators may do everything, brokers everything but change
    an ACL; clients read what is no secret and write only their groups, and what ids and
    transactions need. Without files, those hold rights who do already, and nodes are found that
    have not their ACL yet.

    First let every process name itself (zookeeper_auth, VQ_ZOOKEEPER_AUTH), and restart it; then
    run this as one of the operators. Passwords go over the wire as they are: use TLS.
    """
    given = _given_identities(operators, brokers, clients)
    if undo and given is not None:
        raise InvalidArgument("--undo takes no identities: anybody may do anything then")

    async def work(cluster: ClusterClient) -> tuple[SecuredTree, bool]:
        identities = None if undo else given or await identities_of(cluster)
        if identities is None and not undo:
            raise InvalidArgument(
                "nobody holds rights in this tree yet: name --operators FILE, --brokers FILE and "
                "--clients FILE; or --undo to see what somebody else has closed"
            )
        if identities is not None and await identities_of(cluster) is None:
            own = cluster.config.zookeeper_auth
            closes = yes and bool(own) and identity_of(own) in identities.operators
            await _look_at_brokers(cluster, invocation.output, closes)
        run = secure_tree if yes else plan_secure_tree
        return await run(cluster, identities), identities is not None

    found, secured = invocation.run(anywhere(invocation, work))
    rows = [
        {"path": each.path or "/", "found": _acl_text(each.found), "wanted": _acl_text(each.wanted)}
        for each in found.wrong
    ]
    output = invocation.output
    counts = {"nodes": found.nodes, "open": found.open, "others": found.others}
    if output.document({"done": yes, "secured": secured, **counts, "wrong": rows}):
        return
    output.record(counts)
    if rows:
        output.table(rows[:_STEPS_SHOWN], columns="path found wanted")
    if len(rows) > _STEPS_SHOWN:
        output.remark(f"... and {len(rows) - _STEPS_SHOWN} more; --json has all")
    if yes:
        output.remark(f"{len(rows)} nodes have a new ACL")
    else:
        invocation.only_planned()


async def _look_at_brokers(cluster: ClusterClient, output: Output, closes: bool) -> None:
    """Tell which brokers a closed tree would lock out; do not go on if that is known of one."""
    nodes = (await plan_security(cluster)).nodes
    for each in nodes:
        if each.error:
            output.remark(f"{each.name} does not tell whether it names itself: {each.error}")
    if nobody := [each.name for each in nodes if not each.error and not each.zookeeper_auth]:
        why = (
            f"{', '.join(nobody)} would be locked out: set VQ_ZOOKEEPER_AUTH of each of these "
            "brokers, and restart it"
        )
        if closes:
            raise CommandFailed(f"nothing was changed: {why}; then do this again")
        output.remark(why)


def _given_identities(
    operators: tuple[Path, ...], brokers: tuple[Path, ...], clients: tuple[str, ...]
) -> Identities | None:
    """Return the identities of options; None: there are none."""
    if not (operators or brokers or clients):
        return None
    found: dict[str, str] = {}

    def identity(file: Path, option: str) -> str:
        digest = _identity_in(file)
        if digest in found:
            raise InvalidArgument(
                f"the identity in {file} is given twice, by {found[digest]} and {option}: it would "
                "have the rights of both; give each its own"
            )
        found[digest] = option
        return digest

    of_clients: dict[str, tuple[str, ...]] = {}
    for each in clients:
        file, _, groups = each.partition("=")
        names = tuple(part.strip() for part in groups.split(",") if part.strip())
        of_clients[identity(Path(file), "--clients")] = names or ("*",)
    return Identities(
        operators=tuple(identity(each, "--operators") for each in operators),
        brokers=tuple(identity(each, "--brokers") for each in brokers),
        clients=of_clients,
    )


def _identity_in(file: Path) -> str:
    """Return the digest of the name:password in a file that only its owner reads."""
    try:
        auth = checked_auth(read_secret_file(file, _IDENTITY_BYTES_MAX).strip())
        if not auth:
            raise InvalidArgument("it is empty")
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error
    return identity_of(auth)


def _acl_text(acl: Acl) -> str:
    """Return an ACL without its hashes: whoever knows one may try passwords."""
    texts = {f"{each.id.partition(':')[0]}:{each.rights.letters}" for each in acl}
    return " ".join(sorted(texts)) or "nobody"


@zk.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@option("--below PATH", "Only this node, and what lies below it.", default="")
@flag("--with-secrets", "With the secret of the cluster: whoever has the file can act as a broker.")
@shows(record(file=str, nodes=int, bytes=int))
@command_options
def export(invocation: Invocation, file: Path, below: str, with_secrets: bool) -> None:
    """Write the tree into a new FILE: one JSON document a line, with a checksum at its end.

    Without what belongs to sessions: brokers, members and owners that run. It is no snapshot:
    what changes meanwhile is in it as it was before or after.
    """

    check_new(file)

    async def work(cluster: ClusterClient) -> tuple[int, int]:
        lines = export_tree(cluster, below=below, with_secrets=with_secrets)
        written, size = await write_new(file, lines)
        return written - 2, size  # without the first and the last line

    nodes, size = invocation.call(work)
    invocation.output.record({"file": str(file), "nodes": nodes, "bytes": size})


@zk.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@option("--below PATH", "Only this node, and what lies below it.", default="")
@flag("--replace", "Change nodes that have another value than in FILE.")
@flag("--prune", "Delete nodes that are not in FILE.")
@yes_option
@shows(
    record(
        done=bool,
        source=str,
        exported_s=float,
        same=int,
        created=int,
        changed=int,
        deleted=int,
        different=some(str),
        refused=maybe(str),
        steps=some(_STEP),
    )
)
@command_options
def import_(
    invocation: Invocation, file: Path, below: str, replace: bool, prune: bool, yes: bool
) -> None:
    """Make the nodes of an exported FILE that are missing; the tree may be empty.

    Without --yes only the plan is shown. Nodes with other values are refused without --replace, and
    both --replace and --prune while brokers run, unless a part is imported with --below. Each
    change is under the version that the plan has seen.

    Into an empty tree, import before the first broker starts. Members, owners and brokers are not
    in the file: they come again by themselves.
    """
    exported = _read(file)

    async def work(cluster: ClusterClient) -> PlannedImport:
        planned = await plan_import_tree(
            cluster, exported, below=below, change=replace, prune=prune
        )
        if yes:
            await import_tree(cluster, planned)
        return planned

    planned = invocation.run(anywhere(invocation, work))
    _show_import(invocation, planned, yes=yes)


async def anywhere(
    invocation: Invocation,
    work: Callable[[ClusterClient], Coroutine[Any, Any, T]],
) -> T:
    """Run work on a cluster that need not be there: its first broker may be to come."""
    async with cluster_client(invocation.client_config(), must_exist=False) as cluster:
        return await work(cluster)


def _show_import(invocation: Invocation, planned: PlannedImport, *, yes: bool) -> None:
    output = invocation.output
    counts = {
        "same": planned.same,
        "created": planned.count(ImportAction.CREATE),
        "changed": planned.count(ImportAction.CHANGE),
        "deleted": planned.count(ImportAction.DELETE),
    }
    steps = _STEP.all(planned.steps)
    if not output.document(
        {
            "done": yes,
            "source": planned.source,
            "exported_s": in_seconds(planned.time_ms),
            **counts,
            "different": list(planned.different),
            "refused": planned.refused or None,
            "steps": steps,
        }
    ):
        output.remark(f"cluster {planned.source}, exported at {utc(planned.time_ms)}")
        output.record(counts)
        output.title("")
        output.table(steps[:_STEPS_SHOWN], columns="action path")
        if len(steps) > _STEPS_SHOWN:
            output.remark(f"{len(steps) - _STEPS_SHOWN} more nodes; --json has them all")
    if planned.refused:
        raise CommandFailed(planned.refused, outcome="refused")
    if not yes:
        invocation.only_planned()


# Files ------------------------------------------------------------------------------------------
def _read(file: Path) -> TreeExport:
    """Return the exported tree in a file.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        with file.open(encoding="utf-8", newline="\n") as lines:
            return read_tree(lines)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is no exported tree: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error.message}") from error


# Showing ----------------------------------------------------------------------------------------


def _show_findings(output: Output, found: CheckedTree) -> None:
    for each in found.findings:
        output.line(f"{each.severity}  {each.path}  {each.problem}: {each.text}")
        for command in each.commands:
            output.line(f"  -> {command}")
        if each.repair is not None:
            output.line(f"  -> vq zk repair --yes ({each.repair_text})")
    output.remark(
        f"{found.nodes} nodes: {found.errors} error(s), {found.warnings} warning(s), "
        f"{found.infos} remark(s)"
    )
    if found.omitted:
        output.remark(f"{found.omitted} further findings are not shown")
