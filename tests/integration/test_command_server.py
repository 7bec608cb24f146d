"""Commands that are forked do what commands that are started anew do."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.command_server import CommandServer, command_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="it needs pidfd_open (Linux)"),
]


@pytest.fixture
def server(processes: ProcessCluster) -> CommandServer:
    found = command_server(processes.environ)
    if found is None:
        pytest.skip("the long form starts every command anew")
    return found


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (("topic", "--help"), b""),
        (("topic", "create"), b""),
        (("topic", "describe", "missing", "--json"), b""),
        (("produce", "missing"), b"x\n" * 100_000),
        (("produce", "t", "--json", "--frm", "utf-8"), b"\xff\n"),
    ],
)
def test_streams_and_exit_code_are_those_of_a_new_process(
    processes: ProcessCluster, server: CommandServer, arguments: tuple[str, ...], stdin: bytes
) -> None:
    environ = {**processes.environ, "VQ_CLIENT_ID": "same"}
    anew = subprocess.run(
        processes.command(*arguments), input=stdin, capture_output=True, check=False, env=environ
    )
    forked = server.run(arguments, stdin, 60, environ)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        anew.returncode,
        anew.stdout,
        anew.stderr,
    )


def test_a_command_that_takes_too_long_is_killed(
    processes: ProcessCluster, server: CommandServer
) -> None:
    """What it wrote until then is known."""
    processes.add("b1")
    processes.vq_json("topic", "create", "t")
    processes.vq_json("produce", "t", stdin=b"found\n")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        server.run(("consume", "t", "--follow"), b"", 0.5, processes.environ)
    assert caught.value.stdout in {b"", b"found\n"}


def test_an_environment_that_only_a_new_interpreter_obeys_has_one_started(
    processes: ProcessCluster, server: CommandServer
) -> None:
    assert command_server({**processes.environ, "LC_ALL": "tr_TR.UTF-8"}) is None
    assert command_server({**processes.environ, "VQ_CLUSTER": "another"}) is server


def test_a_broker_is_a_process_of_its_own(processes: ProcessCluster, server: CommandServer) -> None:
    """In a session of its own; it can be killed, is seen to end, and starts again."""
    broker = processes.add("b1")
    assert os.getsid(broker.pid) == broker.pid != os.getsid(0)
    pid = broker.pid
    broker.signal(signal.SIGKILL)
    assert broker.wait(60) == broker.exit_code == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists()
    processes.restart("b1")
    assert broker.stop() == 0
