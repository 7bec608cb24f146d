"""Processes in which a library of green threads has replaced threads and sockets."""

import subprocess
import sys

import pytest

#: What ``patch_all`` of the library leaves behind, as far as anybody can ask for it.
MARKS = """
import sys, types
names = set({names!r})
library = types.ModuleType({module!r})
setattr(library, {asks!r}, names.__contains__)
sys.modules[{module!r}] = library
"""
#: Tries both APIs. ZooKeeper is not asked: nothing listens at port 1.
PROGRAM = """
import asyncio, vq
from vq.errors import CoordinationError, InvalidState
config = vq.MessageFactoryConfig(zookeeper="127.0.0.1:1", start_timeout_s=0.1)
def outcome(work):
    try:
        work()
    except InvalidState as error:
        return f"refused: {error}"
    except CoordinationError:
        return "tried"
print(outcome(lambda: vq.MessageFactory(config).open()))
print(outcome(lambda: asyncio.run(vq.aio.MessageFactory(config).open())))
"""


def outcomes(before: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("module", "asks", "names"),
    [
        ("gevent.monkey", "is_module_patched", ["thread", "socket", "select", "queue"]),
        ("gevent.monkey", "is_module_patched", ["socket", "select", "queue"]),
        ("eventlet.patcher", "is_monkey_patched", ["thread", "socket", "select"]),
    ],
)
def test_a_process_without_real_threads_or_sockets_is_refused(
    module: str, asks: str, names: list[str]
) -> None:
    """``open`` would wait for ever, or listeners would get nothing."""
    found = outcomes(MARKS.format(module=module, asks=asks, names=names))
    assert len(found) == 2
    library = module.partition(".")[0]
    for line in found:
        assert f"refused: {library} has replaced {', '.join(names)}" in line
        assert "needs real threads and sockets" in line


def test_a_library_that_was_only_imported_is_no_hindrance() -> None:
    marks = MARKS.format(module="gevent.monkey", asks="is_module_patched", names=["time"])
    assert outcomes(marks) == ["tried", "tried"]


@pytest.mark.parametrize("how", ["", "thread=False"])
def test_gevent_itself_is_refused_where_it_is_installed(how: str) -> None:
    pytest.importorskip("gevent")
    for line in outcomes(f"from gevent import monkey; monkey.patch_all({how})\n"):
        assert "refused: gevent has replaced" in line
