"""What every coordinator shares: checks of input, paths, ending background tasks."""

import asyncio
import math

import pytest

from vq.clock import SystemClock
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    NODE_BYTES_MAX,
    Check,
    Create,
    SessionState,
    join,
    parent_of,
)
from vq.coordination.tree.session import (
    SessionBase,
    check_data,
    check_operations,
    check_path,
    end_task,
)
from vq.errors import InvalidArgument


def test_paths_are_joined_and_split() -> None:
    """Empty parts vanish; the parent of a top node is the root."""
    assert join("", "a", "", "b/c") == "a/b/c"
    assert parent_of("a/b/c") == "a/b"
    assert parent_of("a") == ""


@pytest.mark.parametrize("path", ["", "a", "a/b", "a.b/..c"])
def test_sound_paths_pass(path: str) -> None:
    """Also the root, and names that merely contain dots."""
    assert check_path(path) == path


@pytest.mark.parametrize("path", ["/", "/a", "a/", "a//b", "..", "a/./b", "\0"])
def test_unsound_paths_are_refused(path: str) -> None:
    """The message shows the path."""
    with pytest.raises(InvalidArgument, match="relative"):
        check_path(path)


def test_sizes_are_bounded() -> None:
    """One value and a whole multi."""
    largest = b"x" * NODE_BYTES_MAX
    assert check_data("a", largest) is largest
    with pytest.raises(InvalidArgument, match=str(NODE_BYTES_MAX)):
        check_data("a", largest + b"x")
    check_operations([Check("a", 0)] * MULTI_OPERATIONS_MAX)
    for operations in ([], [Check("a", 0)] * (MULTI_OPERATIONS_MAX + 1), [Create("a", largest)]):
        with pytest.raises(InvalidArgument):
            check_operations(operations)


def test_an_answer_of_an_earlier_session_proves_nothing() -> None:
    """Only an answer in the present session says how long it surely lives."""
    session = SessionBase(clock=SystemClock(), session_timeout_s=6)
    session.enter(SessionState.CONNECTED, 1)
    session.answered(10.0, 1)
    session.enter(SessionState.LOST)
    session.enter(SessionState.CONNECTED, 2)
    session.answered(20.0, 1)
    assert session.last_reply_monotonic == -math.inf
    session.answered(15.0, 2)
    assert session.last_reply_monotonic == 15.0


async def test_ending_a_task_does_not_swallow_a_cancellation() -> None:
    """Who is cancelled while it waits for a task's end is cancelled."""
    forever = asyncio.Event()

    async def stubborn() -> None:
        try:
            await forever.wait()
        except asyncio.CancelledError:
            await forever.wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_task(task))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    forever.set()
    await task
    await end_task(asyncio.create_task(forever.wait()))  # type: ignore[arg-type]
