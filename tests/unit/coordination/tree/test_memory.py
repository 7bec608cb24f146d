"""What only the twin can do: faults on demand. The contract suite has what both share."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest
from support.coordination import client_of

from vq.coordination.tree.coordinator import (
    ConnectionLost,
    NotConnected,
    SessionExpired,
    SessionState,
    WatchEvent,
)
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def client(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with client_of(ensemble, session_timeout_s=0.05) as made:
        yield made


async def test_a_client_cut_off_too_long_loses_its_session_unknowingly(
    ensemble, client, other
) -> None:
    """The ensemble ends it after its time-out; the client hears LOST only when it is back."""
    await client.create("eph", ephemeral=True)
    states: list[SessionState] = []
    client.add_listener(states.append)
    begin = asyncio.get_running_loop().time()
    ensemble.disconnect(client)
    await until(lambda: ensemble.tree.exists("vq/test/eph") is None)
    late_s = asyncio.get_running_loop().time() - begin - client.session_timeout_s
    assert -0.005 < late_s < 2.0, "after the time-out, and not long after it"
    assert states == [SessionState.SUSPENDED]
    ensemble.reconnect(client)
    await until(lambda: len(states) == 3)
    assert states[1:] == [SessionState.LOST, SessionState.CONNECTED]


async def test_calls_give_up_when_the_cut_lasts(ensemble, client) -> None:
    """After one and a half session time-outs, and certainly nothing was sent."""
    ensemble.disconnect(client)
    with pytest.raises(NotConnected, match="nothing sent"):
        await client.create("a")
    ensemble.reconnect(client)
    await until(lambda: client.state is SessionState.CONNECTED)
    assert await client.exists("a") is None


async def test_a_call_that_waits_while_its_session_ends_says_so(ensemble, client) -> None:
    """It must not be carried out under another session."""
    session = client.session_id
    ensemble.disconnect(client)
    waiting = asyncio.ensure_future(client.create("eph", ephemeral=True))
    await asyncio.sleep(0)
    ensemble.expire(session)
    ensemble.reconnect(client)
    with pytest.raises(SessionExpired):
        await waiting
    assert await client.exists("eph") is None


async def test_sessions_do_not_age_while_the_ensemble_is_away(ensemble, client) -> None:
    """As with a real outage: after it every session has its full time-out to come back."""
    await client.create("eph", ephemeral=True)
    session = client.session_id
    ensemble.stop()
    await asyncio.sleep(3 * client.session_timeout_s)
    ensemble.start()
    await until(lambda: client.state is SessionState.CONNECTED)
    assert client.session_id == session
    assert await client.exists("eph") is not None


async def test_a_lost_request_was_not_applied(ensemble, client) -> None:
    """The caller cannot tell it from a lost reply."""
    ensemble.lose_next_request(client)
    with pytest.raises(ConnectionLost):
        await client.create("a")
    assert await client.exists("a") is None


async def test_events_can_be_late_or_lost(ensemble, other) -> None:
    """Replies go on meanwhile."""
    hints: list[WatchEvent] = []
    await other.exists("a", watch=hints.append)
    ensemble.hold_events(other)
    await other.create("a")
    assert hints == []
    ensemble.release_events(other)
    await until(lambda: hints)
    await other.exists("a", watch=hints.append)
    ensemble.hold_events(other)
    await other.set("a", b"x")
    ensemble.release_events(other, drop=True)
    await other.sync()
    assert len(hints) == 1


async def test_a_crashed_client_is_silent_until_its_session_ends(ensemble, client, other) -> None:
    """It hears nothing, and its ephemerals go after the time-out."""
    await client.create("eph", ephemeral=True)
    states: list[SessionState] = []
    client.add_listener(states.append)
    begin = asyncio.get_running_loop().time()
    ensemble.crash(client)
    assert await other.exists("eph") is not None
    await until(lambda: ensemble.tree.exists("vq/test/eph") is None)
    late_s = asyncio.get_running_loop().time() - begin - client.session_timeout_s
    assert -0.005 < late_s < 2.0, "after the time-out, and not long after it"
    assert states == []


async def test_a_frozen_client_learns_of_its_sessions_end_when_it_thaws(
    ensemble, client, other
) -> None:
    """Until then it believes that it is connected, and nothing it says is taken."""
    await client.create("eph", ephemeral=True)
    session, states = client.session_id, []
    client.add_listener(states.append)
    ensemble.freeze(client)
    await until(lambda: not ensemble.is_live(session))
    assert await other.exists("eph") is None
    assert client.state is SessionState.CONNECTED
    call = asyncio.create_task(client.create("zombie", ephemeral=True))
    await asyncio.sleep(0)
    ensemble.thaw(client)
    with pytest.raises(ConnectionLost):
        await call
    await until(lambda: client.session_id not in (0, session))
    assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert await other.exists("zombie") is None


async def test_a_connection_that_ends_while_its_client_is_frozen_is_missed_later(
    ensemble, client
) -> None:
    """No call waits for ever for an answer that was lost meanwhile."""
    ensemble.freeze(client)
    ensemble.lose_next_reply(client)
    calls = [asyncio.create_task(client.create(name)) for name in ("a", "b")]
    for _ in range(5):
        await asyncio.sleep(0)
    ensemble.thaw(client)
    assert all(
        isinstance(outcome, ConnectionLost)
        for outcome in await asyncio.gather(*calls, return_exceptions=True)
    )
    assert await client.exists("a") is not None
    assert await client.exists("b") is None


async def test_a_frozen_client_that_thaws_in_time_keeps_its_session(ensemble, client) -> None:
    """It notices nothing."""
    session, states = client.session_id, []
    client.add_listener(states.append)
    ensemble.freeze(client)
    ensemble.thaw(client)
    await client.create("eph", ephemeral=True)
    assert client.session_id == session
    assert states == []


async def test_watches_and_listeners_run_in_the_context_of_their_client(
    ensemble, client, other
) -> None:
    """Whoever causes an event, its hearer is called as the process that asked for it."""
    name: ContextVar[str] = ContextVar("name", default="nobody")
    heard: list[str] = []

    async def start_hearer() -> MemoryCoordinator:
        name.set("hearer")
        hearer = ensemble.coordinator("test", session_timeout_s=4.0)
        await hearer.start()
        await hearer.children("", watch=lambda _: heard.append(name.get()))
        hearer.add_listener(lambda _: heard.append(name.get()))
        return hearer

    hearer = await asyncio.create_task(start_hearer())
    name.set("other")
    await other.create("new")
    await until(lambda: heard)
    ensemble.disconnect(hearer)
    assert heard == ["hearer", "hearer"]
    await hearer.close()


async def test_messages_take_the_time_the_simulation_says(client) -> None:
    """Requests and replies are delayed but stay in order."""
    delays = iter([0.02, 0.0] * 50)
    slow = MemoryEnsemble(delay=lambda: next(delays, 0.0))
    async with client_of(slow) as one:
        done: list[int] = []

        async def create(number: int) -> None:
            await one.create(f"n{number}")
            done.append(number)

        await asyncio.gather(*(create(n) for n in range(5)))
        assert done == [0, 1, 2, 3, 4]
        czxids = [(await one.get(f"n{n}")).stat.czxid for n in range(5)]
        assert czxids == sorted(czxids)


async def test_no_server_no_start(ensemble) -> None:
    """The error says what to do, and the coordinator is closed."""
    ensemble.stop()
    client = ensemble.coordinator("test")
    with pytest.raises(CoordinationError, match="vq doctor"):
        await client.start(timeout_s=0.01)
    assert client.state is SessionState.CLOSED
    with pytest.raises(InvalidState, match="closed"):
        await client.get("")


async def test_misuse_is_told(ensemble) -> None:
    """Calls before the start, unknown sessions, impossible time-outs."""
    with pytest.raises(InvalidState, match="not started"):
        await ensemble.coordinator("test").get("")
    with pytest.raises(InvalidState, match="0x99"):
        ensemble.expire(0x99)
    with pytest.raises(InvalidArgument, match="session_timeout_s = 0"):
        ensemble.coordinator("test", session_timeout_s=0)
