"""A session's end, a lost reply and the lease are told as they are, to the call they concern."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from support.coordinator_contract import Ensemble, States

from vq.clock import SystemClock
from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    NodeExists,
    SessionExpired,
    SessionState,
    Set,
)
from vq.errors import CoordinationError, InvalidState
from vq.testing.waiting import until


async def test_a_clean_close_takes_the_ephemerals_along(ensemble: Ensemble) -> None:
    """They are gone as soon as close returns; persistent nodes stay."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("eph", ephemeral=True)
    await client.create("per")
    await client.close()
    await other.sync()
    assert await other.children("") == ["per"]
    assert client.state is SessionState.CLOSED
    assert client.session_id == 0
    assert client.last_reply_monotonic == -math.inf
    with pytest.raises(InvalidState):
        await client.get("per")
    await client.close()


async def test_ephemerals_carry_their_session(ensemble: Ensemble) -> None:
    """Two sessions differ, and each node says whose it is."""
    one, two = await ensemble.client(), await ensemble.client()
    await one.create("a", ephemeral=True)
    stat = await two.exists("a")
    assert stat is not None
    assert stat.ephemeral_owner == one.session_id
    assert one.session_id != two.session_id
    with pytest.raises(CoordinationError):
        await two.create("a/child")


async def test_a_blink_keeps_session_and_ephemerals(ensemble: Ensemble) -> None:
    """Connection loss is not session loss: SUSPENDED, then CONNECTED with the same session."""
    client = await ensemble.client(session_timeout_s=30.0)
    session = client.session_id
    await client.create("eph", ephemeral=True)
    states = States(client)
    await ensemble.blink(client)
    await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert SessionState.LOST not in states.seen
    assert client.session_id == session
    assert await client.exists("eph") is not None


async def test_an_expired_session_is_lost_and_followed_by_a_new_one(ensemble: Ensemble) -> None:
    """LOST is always told, then CONNECTED with another session id; ephemerals are gone."""
    client, other = await ensemble.client(), await ensemble.client()
    session = client.session_id
    await client.create("eph", ephemeral=True)
    await client.create("per")
    states = States(client)
    await ensemble.expire(client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    assert states.seen.count(SessionState.LOST) == 1
    assert client.session_id not in {0, session}
    assert await other.exists("eph") is None
    await client.create("eph", ephemeral=True)
    assert (await client.get("eph")).stat.ephemeral_owner == client.session_id


async def test_an_expired_session_can_be_expired_again(ensemble: Ensemble) -> None:
    """The coordinator survives any number of lost sessions."""
    client = await ensemble.client()
    states = States(client)
    sessions = {client.session_id}
    for _ in range(3):
        await ensemble.expire(client)
        await states.until(SessionState.LOST, SessionState.CONNECTED)
        states.seen.clear()
        sessions.add(client.session_id)
    assert len(sessions) == 4


CALLS: dict[str, Callable[[Coordinator], Awaitable[object]]] = {
    "create": lambda client: client.create("new", b"", ephemeral=True),
    "set": lambda client: client.set("a", b"1"),
    "delete": lambda client: client.delete("a"),
    "multi": lambda client: client.multi([Set("a", b"1"), Create("new", b"", True)]),
    "get": lambda client: client.get("a"),
    "exists": lambda client: client.exists("a"),
    "children": lambda client: client.children("a"),
    "sync": lambda client: client.sync(),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_not_sent_in_the_session_after_its_own(
    ensemble: Ensemble, call: str
) -> None:
    """The loop was held up while the session ended: SessionExpired, and nothing was applied."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    session = client.session_id
    states = States(client)
    ensemble.expire_unheard(client)
    assert client.session_id == session  # the news waits
    with pytest.raises(SessionExpired):
        await CALLS[call](client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    await other.sync()
    assert (await other.get("a")).data == b"0"
    assert await other.exists("new") is None


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_outlived_its_session_is_not_said_to_be_done(
    ensemble: Ensemble, call: str
) -> None:
    """What was sent in the next session is unknown to its caller, who reads; reads ask again."""
    client = await ensemble.client()
    await client.create("a", b"0")
    session = client.session_id
    ensemble.outlive_next(client)
    with pytest.raises((ConnectionLost, SessionExpired)) as caught:
        await CALLS[call](client)
    assert client.session_id not in {0, session}
    if call in {"get", "exists", "children"}:
        assert caught.type is SessionExpired
        return
    assert caught.type is ConnectionLost  # SessionExpired would say that nothing was applied
    if call in {"create", "multi"}:
        made = await client.exists("new")
        assert made is not None
        assert made.ephemeral_owner == client.session_id


@pytest.mark.slow
async def test_a_refusal_that_outlived_its_session_applied_nothing(ensemble: Ensemble) -> None:
    """It is no news of the session that the call was begun in: SessionExpired."""
    client = await ensemble.client()
    await client.create("a", b"0")
    ensemble.outlive_next(client)
    with pytest.raises(SessionExpired):
        await client.set("a", b"1", version=7)
    assert (await client.get("a")).stat.version == 0


async def test_calls_during_a_blink_wait_for_the_connection(ensemble: Ensemble) -> None:
    """SUSPENDED pauses; it does not fail what was not sent yet."""
    client = await ensemble.client()
    await client.create("a", b"0")
    states = States(client)
    await ensemble.blink(client)
    await states.until_seen(SessionState.SUSPENDED)
    assert (await client.get("a")).data == b"0"


async def test_a_lost_reply_says_unknown_and_the_write_was_applied(ensemble: Ensemble) -> None:
    """The caller gets ConnectionLost and settles it by reading; nothing was sent twice."""
    client = await ensemble.client(session_timeout_s=30.0)  # no heartbeat's answer is the next
    await client.create("a", b"0")
    ensemble.lose_next_reply(client)
    with pytest.raises(ConnectionLost):
        await client.set("a", b"1")
    node = await client.get("a")
    assert (node.data, node.stat.version) == (b"1", 1)


async def test_a_lost_reply_of_a_multi_leaves_it_applied_once(ensemble: Ensemble) -> None:
    """The same for a multi; repeating it with its version fails, so it cannot apply twice."""
    client = await ensemble.client(session_timeout_s=30.0)
    await client.create("a", b"0")
    operations = [Set("a", b"1", 0), Create("b", b"", True)]
    ensemble.lose_next_reply(client)
    with pytest.raises(ConnectionLost):
        await client.multi(operations)
    with pytest.raises(BadVersion):
        await client.multi(operations)
    assert await client.children("") == ["a", "b"]


async def test_the_lease_is_renewed_by_answers_and_by_the_heartbeat(ensemble: Ensemble) -> None:
    """last_reply_monotonic is the sending time of an answered write or sync."""
    clock = SystemClock()
    client = await ensemble.client()
    before = clock.monotonic()
    await client.sync()
    assert before <= client.last_reply_monotonic <= clock.monotonic()
    last = client.last_reply_monotonic
    await until(lambda: client.last_reply_monotonic > last)


async def test_the_lease_counts_from_the_sending_not_from_the_answer(ensemble: Ensemble) -> None:
    """What proves that the session lived is that the request was carried out."""
    clock = SystemClock()
    client = await ensemble.client(session_timeout_s=30.0)  # no heartbeat's answer is the next
    held_s = 0.3
    ensemble.delay_next_answer(client, held_s)
    before = clock.monotonic()
    await client.sync()
    after = clock.monotonic()
    assert before <= client.last_reply_monotonic <= after - held_s


async def test_a_refusal_is_an_answer_too(ensemble: Ensemble) -> None:
    """A failed compare-and-set proves that the session lives."""
    clock = SystemClock()
    client = await ensemble.client()
    await client.create("a")
    before = clock.monotonic()
    with pytest.raises(NodeExists):
        await client.create("a")
    assert client.last_reply_monotonic >= before


async def test_a_lost_session_has_no_lease(ensemble: Ensemble) -> None:
    """From SUSPENDED on the lease only ages; at LOST it is gone."""
    client = await ensemble.client()
    await client.sync()
    at_loss = []
    client.add_listener(
        lambda state: (
            at_loss.append(client.last_reply_monotonic) if state is SessionState.LOST else None
        )
    )
    states = States(client)
    await ensemble.expire(client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    assert at_loss == [-math.inf]


async def test_a_removed_or_failing_listener_harms_nobody(ensemble: Ensemble) -> None:
    """Removed ones hear nothing more; one that raises does not keep the news from others."""
    client = await ensemble.client()

    def bad(_: SessionState) -> None:
        raise ValueError("bad listener")

    client.add_listener(bad)
    removed = States(client)
    removed.remove()
    states = States(client)
    await ensemble.blink(client)
    await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert removed.seen == []


async def test_many_calls_at_once_are_all_answered(ensemble: Ensemble) -> None:
    """More calls than may be in flight wait their turn."""
    client = await ensemble.client()
    await client.create("a")
    await asyncio.gather(*(client.set("a", b"x") for _ in range(1500)))
    assert (await client.get("a")).stat.version == 1500


async def test_a_cancelled_call_harms_nobody(ensemble: Ensemble) -> None:
    """Its answer is dropped; later calls work."""
    client = await ensemble.client()
    await client.create("a")
    call = asyncio.ensure_future(client.set("a", b"1"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.sync()
    assert (await client.get("a")).stat.version in {0, 1}


async def test_a_coordinator_starts_once(ensemble: Ensemble) -> None:
    """A second start is a mistake; so is a call before the first."""
    client = await ensemble.client()
    with pytest.raises(InvalidState):
        await client.start()


async def test_many_clients_start_together(ensemble: Ensemble) -> None:
    """They may all make the cluster's root."""
    clients = await asyncio.gather(*(ensemble.client("fresh") for _ in range(5)))
    assert len({client.session_id for client in clients}) == 5
