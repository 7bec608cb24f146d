"""The runs of the archive: made, read, and what nodes write of them, as coroutines.

A run is made once: a daily one for each time at which it was due, an operator's for each nonce,
whatever answers are lost. A daily one is made only while the maker holds the lease (``leases``).
Values are in ``values.runs``; what a run does is in ``broker.history.archive_runs``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from vq.coordination.brokers.registry import all_nodes
from vq.coordination.leases.leases import LeaseNotHeld
from vq.coordination.tree.coordinator import (
    BadVersion,
    Check,
    Coordinator,
    Create,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    Unreadable,
    join,
)
from vq.coordination.tree.reading import children_or_none, gather_all, numbered_children, read_nodes
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.runs import (
    RUNS_KEPT,
    RUNS_MAX,
    RunCounter,
    RunOrder,
    RunResult,
    covering,
)
from vq.errors import CoordinationError


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs that are remembered.

    Attributes:
        known: By number, in rising order.
        unreadable: Those whose znode has something else, with the error; nobody does them.
        since_ms: When a node first held the lease; 0: not known.
        daily_ms: When the last daily run was due; 0: there was none.
    """

    known: Mapping[int, RunOrder] = field(default_factory=dict)
    unreadable: Mapping[int, Unreadable] = field(default_factory=dict)
    since_ms: int = 0
    daily_ms: int = 0


class TooManyRuns(CoordinationError):
    """Too many runs wait for nodes that are to do them; none was made."""

    retriable = False


async def begin_runs(coordinator: Coordinator, now_ms: int) -> None:
    """Note that from now on a daily run can be missed, if that is not noted yet."""
    path = RunCounter.path()

    async def plan(_: CoordinationError | None) -> Plan[None]:
        if await coordinator.exists(path) is not None:
            return Plan([], None)
        return Plan([Create(path, RunCounter(since_ms=now_ms).encode())], None)

    await apply_plan(coordinator, plan, what="the counter of runs")


async def make_run(
    coordinator: Coordinator, run: RunOrder, *, lease: Callable[[], Check] | None = None
) -> int:
    """Make a run, unless it is there already; return its number.

    Args:
        coordinator: A started coordinator.
        run: What to do.
        lease: Returns the check that the maker holds the lease; for a daily run.

    Raises:
        LeaseNotHeld: Another node holds the lease; nothing was made.
        TooManyRuns: Nodes do not do the runs that are there; a daily run is made all the same.
        CoordinationError: See ``update``.
    """
    path = RunCounter.path()

    async def plan(failed: CoordinationError | None) -> Plan[int]:
        check = None if lease is None else lease()
        if isinstance(failed, BadVersion) and check is not None and failed.path == check.path:
            raise LeaseNotHeld(f"another node took the lease before {run.by} made a run")
        node = await _counter_node(coordinator)
        runs = await read_runs(coordinator)
        for number, known in runs.known.items():
            if known.nonce == run.nonce or (run.due_ms is not None and known.due_ms == run.due_ms):
                return Plan([], number)
        if lease is None and len(runs.known) >= RUNS_MAX:
            raise TooManyRuns(
                f"there are {len(runs.known)} runs of the archive, and at most {RUNS_MAX} may "
                "be: some node has not done them",
                hint="`vq archive history` says which node is missing",
            )
        counter = _counter(node)
        taken = [*runs.known, *runs.unreadable]
        number = max(counter.next, max(taken, default=-1) + 1)
        operations: list[Operation] = [] if check is None else [check]
        daily_ms = counter.daily_ms if run.due_ms is None else run.due_ms
        counter = replace(counter, next=number + 1, daily_ms=daily_ms)
        operations += [
            Set(path, counter.encode(), node.stat.version),
            Create(RunOrder.path(number), run.encode()),
        ]
        return Plan(operations, number)

    return await apply_plan(coordinator, plan, what="the list of runs")


async def _counter_node(coordinator: Coordinator) -> Node:
    path = RunCounter.path()
    try:
        return await coordinator.get(path)
    except NoNode:
        try:
            await coordinator.create(path, RunCounter().encode(), parents=True)
        except NodeExists:
            pass
        return await coordinator.get(path)


def _counter(node: Node) -> RunCounter:
    """Return the counter; a new one where something else is: the runs have their numbers."""
    try:
        return RunCounter.decode(RunCounter.path(), node.data)
    except Unreadable:
        return RunCounter()


async def read_runs(coordinator: Coordinator) -> Runs:
    """Return the runs."""
    numbers = await numbered_children(coordinator, RunCounter.path())
    runs: dict[int, RunOrder | Unreadable | None] = dict.fromkeys(numbers)

    async def read(number: int) -> None:
        runs[number] = await read_run(coordinator, number)

    await gather_all(read(number) for number in numbers)
    try:
        counter = _counter(await coordinator.get(RunCounter.path()))
    except NoNode:
        counter = RunCounter()
    return Runs(
        {number: run for number, run in runs.items() if isinstance(run, RunOrder)},
        {number: run for number, run in runs.items() if isinstance(run, Unreadable)},
        counter.since_ms,
        counter.daily_ms,
    )


async def read_run(coordinator: Coordinator, number: int) -> RunOrder | Unreadable | None:
    """Return a run, which never changes; the error where the value is none; None: it is gone."""
    path = RunOrder.path(number)
    try:
        return RunOrder.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        return None
    except Unreadable as error:
        return error


async def read_results(
    coordinator: Coordinator, number: int
) -> dict[tuple[str, str], RunResult | Unreadable]:
    """Return what nodes wrote of a run, by group and node; the error where a value is none."""
    parent = RunOrder.path(number)
    found: dict[tuple[str, str], RunResult | Unreadable] = {}
    names = await children_or_none(coordinator, parent)
    paths = [join(parent, name) for name in names]
    nodes = await read_nodes(coordinator, paths)
    for name, path, node in zip(names, paths, nodes, strict=True):
        if isinstance(node, Unreadable):
            found[RunResult.node_of(name)] = node
        elif node is not None:
            try:
                found[RunResult.node_of(name)] = RunResult.decode(path, node.data)
            except Unreadable as error:
                found[RunResult.node_of(name)] = error
    return dict(sorted(found.items()))


async def read_result(
    coordinator: Coordinator, number: int, group: str, node: str
) -> RunResult | None:
    """Return what a node wrote of a run; None: nothing, or nothing that can be read."""
    path = RunResult.path(number, group, node)
    try:
        return RunResult.decode(path, (await coordinator.get(path)).data)
    except (NoNode, Unreadable):
        return None


async def write_result(
    coordinator: Coordinator, number: int, group: str, node: str, result: RunResult
) -> None:
    """Write what a node has done of a run; a no-op if the run is forgotten.

    Only that node writes it, so the last write counts.
    """
    path, data = RunResult.path(number, group, node), result.bounded().encode()
    try:
        await coordinator.set(path, data)
    except NoNode:
        try:
            await coordinator.create(path, data)
        except NodeExists:  # a write before got no answer
            await coordinator.set(path, data)
        except NoNode:
            pass


async def forget_runs(coordinator: Coordinator) -> None:
    """Delete runs that are not among the newest ``RUNS_KEPT``, and that no node is to do any more.

    Every registered node has ended them, or a later run does their work. One that gets a result
    meanwhile stays.
    """
    if len(await numbered_children(coordinator, RunCounter.path())) <= RUNS_KEPT:
        return
    runs = await read_runs(coordinator)
    numbers = sorted([*runs.known, *runs.unreadable])
    registered = {(each.group, each.node) for each in await all_nodes(coordinator)}
    for number in numbers[:-RUNS_KEPT]:
        if number in runs.known and covering(runs.known, number) is None:
            results = await read_results(coordinator, number)
            ended = {
                node
                for node, each in results.items()
                if isinstance(each, RunResult) and each.has_ended
            }
            if not results or registered - ended:
                continue
        path = RunOrder.path(number)
        for name in await children_or_none(coordinator, path):
            await _delete(coordinator, join(path, name))
        await _delete(coordinator, path)


async def _delete(coordinator: Coordinator, path: str) -> None:
    try:
        await coordinator.delete(path)
    except (NoNode, NotEmpty):
        pass
