"""Members that store results with their offsets are killed: each effect is there once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.cluster import ProcessCluster
from support.command_server import ForkedProcess, command_server
from support.databases import postgresql
from support.faults import LONG, make_rng

from vq.testing.waiting import block_until

MESSAGES = 1_200 if LONG else 150
KILLS = 8 if LONG else 2


@contextmanager
def sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite:///{directory / 'shop.db'}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_effects_are_there_once_across_kills(
    processes: ProcessCluster, tmp_path: Path, kind: str
) -> None:
    """SIGKILL of a member in the middle of its work, with two members at a time."""
    rng = make_rng()
    processes.add("b1")
    processes.vq("topic", "create", "t", "--partitions", "2")
    sent = [f"{n}" for n in range(MESSAGES)]
    processes.vq("produce", "t", stdin="\n".join(sent).encode() + b"\n")
    database = sqlite(tmp_path) if kind == "sqlite" else postgresql()
    with database as url:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE results (text VARCHAR(64))"))

        def stored() -> list[str]:
            with engine.connect() as connection:
                return [text for (text,) in connection.execute(sa.text("SELECT text FROM results"))]

        members = [_member(processes, url), _member(processes, url)]
        try:
            for kill in range(KILLS):
                until = (kill + 1) * MESSAGES // (KILLS + 2) + rng.randrange(20)
                block_until(lambda n=until: len(stored()) >= n, f"{until} results")
                victim = members.pop(rng.randrange(2))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                members.append(_member(processes, url))
            block_until(lambda: len(stored()) >= MESSAGES, "all results")
        finally:
            for each in members:
                each.kill()
                each.wait()
        found = stored()
        twice = {text: count for text, count in Counter(found).items() if count > 1}
        assert not twice
        assert sorted(found) == sorted(sent)


def _member(processes: ProcessCluster, url: str) -> "subprocess.Popen[bytes] | ForkedProcess":
    server = command_server(os.environ)
    parent = os.getpid() if server is None else server.pid
    where = [processes.zookeeper, processes.name, "g", "t", url, str(parent)]
    program = ["-m", "support.storing_process", *where]
    if server is not None:
        with open(os.devnull) as nothing:
            return server.start(program, os.environ, (nothing.fileno(), 1, 2))
    tests = Path(__file__).parent.parent
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, *program],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
