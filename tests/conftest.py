"""Fixtures of every test: a real ZooKeeper with a root of one's own, and servers to break."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from support.cluster import ProcessCluster, process_cluster
from support.zookeeper import ZooKeeperRoot, ZooKeeperService, embedded, own_root, service

from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.loop import VirtualLoop

# Properties: the same examples every time in the short form, new and many more in the long one.
# Without "explain": it traces every line that runs, which makes the long stories crawl.
_PHASES = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
hypothesis.settings.register_profile(
    "short", max_examples=30, derandomize=True, deadline=None, phases=_PHASES
)
hypothesis.settings.register_profile("long", max_examples=5_000, deadline=None)
# A shell starts background jobs with ctrl-C ignored, and nohup ignores the end of a terminal;
# children inherit that, and tests send both.
for number, default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)
LONG = os.environ.get("VQ_LONG") == "1"
TESTS = Path(__file__).parent
#: What tests of a folder do, unless they work all the time: see ``shared_order``.
KINDS = {"spark": "first", "integration": "waits", "faults": "waits"}
#: How much of the first part the tests of Spark take; up to where a part has tests that wait: those
#: that another process takes over at its end do not. A slow test counts as so many others.
SPARK_TAKES, WAITS_END, SLOW = 0.5, 0.8, 20
#: What does more, everywhere, with ``VQ_LONG=1``.
HAVE_LONG_FORMS = {"faults", "property"}
hypothesis.settings.load_profile("long" if LONG else "short")
if not LONG:
    # Hypothesis draws from the constants of the sources: each process would parse all of them, and
    # a changed number anywhere would change the examples.
    providers.is_local_module_file = lambda path: False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two processes for each core: of three on two cores, a quarter of both cores was idle."""
    return 2 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give tests that are marked ``virtual_time`` a loop on which waiting takes no time."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect without looking for garbage: there is none, and each look passes all that is kept.

    What was collected stays until the end, so no look during a test passes it either.
    """
    gc.disable()
    try:
        _import_modules(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_modules(session: pytest.Session) -> None:
    """Import the test modules, each process of a run in an order of its own.

    In a new checkout that compiles them. All begin at the same time: in the same order each would
    compile each of them, so each begins at another one and finds what the others have compiled.
    """
    ours = getattr(session.config, "workerinput", None)  # xdist's
    if ours is None:
        return
    places = [Path(session.config.invocation_params.dir, arg) for arg in session.config.args]
    modules = sorted(path for place in places for path in place.rglob("test_*.py"))
    first = len(modules) * int(ours["workerid"].removeprefix("gw")) // ours["workercount"]
    for path in modules[first:] + modules[:first]:
        # What fails is imported again, and told, when it is collected.
        with contextlib.suppress(pytest.Collector.CollectError):
            pytest.Module.from_parent(session, path=path).obj  # noqa: B018  imports it


@pytest.hookimpl(tryfirst=True)  # before ``-m`` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long forms to their own command, and order what several processes share."""
    for item in items:
        if LONG and item.path.relative_to(TESTS).parts[0] in HAVE_LONG_FORMS:
            item.add_marker(pytest.mark.long)
        elif not LONG and item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="long form: make test-long"))
    ours = getattr(config, "workerinput", None)  # xdist's
    if ours is not None:
        items[:] = shared_order(items, ours["workercount"])


def shared_order(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the items in the order in which processes share them, an equal part for each.

    The tests of Spark share a session, which takes a Java to itself: they come first and stay
    together. Those of other processes mostly wait, and those in memory never do: so each part has
    some of both, module by module, and what waits comes before the end of the part.
    """
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    kinds: dict[str, list[list[pytest.Item]]] = {"first": [], "waits": [], "works": []}
    for module in modules.values():
        folder = module[0].path.relative_to(TESTS).parts[0]
        kinds[KINDS.get(folder, "works")].append(module)
    placed = [
        *((-1.0, module) for module in kinds["first"]),
        *(
            (place // 1 + place % 1 * WAITS_END, module)
            for place, module in spread(kinds["waits"], SPARK_TAKES, processes)
        ),
        *spread(kinds["works"], 0.0, processes),
    ]
    placed.sort(key=lambda each: each[0])
    return [item for _, module in placed for item in module]


def spread(
    modules: list[list[pytest.Item]], begin: float, end: float
) -> Iterator[tuple[float, list[pytest.Item]]]:
    """Yield modules with places between two numbers, by how long those before them may take."""
    sizes = [
        sum(SLOW if each.get_closest_marker("slow") else 1 for each in module) for module in modules
    ]
    for before, module in zip(accumulate(sizes, initial=0), modules, strict=False):
        yield begin + (end - begin) * before / sum(sizes), module


@pytest.fixture(scope="session", autouse=True)
def failed_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Members of tests, and of their processes, record what they skip in no home directory."""
    os.environ["VQ_FAILED_DIR"] = str(tmp_path_factory.mktemp("failed"))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperService]:
    """A ZooKeeper shared by all tests of this process; do not stop it."""
    with service(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def zookeeper_root(zookeeper: ZooKeeperService) -> Iterator[ZooKeeperRoot]:
    """A root in the shared ZooKeeper that belongs to this test."""
    with own_root(zookeeper.hosts) as root:
        yield root


@pytest.fixture
def make_zookeeper(tmp_path: Path) -> Iterator[Callable[..., EmbeddedZooKeeper]]:
    """Start ZooKeeper servers of this test's own: ``make_zookeeper(servers=3, tick_ms=100)``."""
    with ExitStack() as stack:

        def make(*, servers: int = 1, tick_ms: int = 500) -> EmbeddedZooKeeper:
            place = tmp_path / f"zookeeper-{len(list(tmp_path.glob('zookeeper-*')))}"
            return stack.enter_context(embedded(place, servers=servers, tick_ms=tick_ms))

        yield make


@pytest.fixture
def processes(tmp_path: Path, zookeeper: ZooKeeperService) -> Iterator[ProcessCluster]:
    """A cluster of broker processes, none yet: ``processes.add("b1")``."""
    with process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster:
        yield cluster
