"""A group as a member knows it: everything once, then what changed, never less than the tree."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.coordination import expire

from vq.coordination.groups import claims, groups
from vq.coordination.groups.claims import Assigned
from vq.coordination.groups.group_mirror import GroupMirror
from vq.coordination.tree import mirror
from vq.coordination.tree.coordinator import Check, ConnectionLost
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import ConsumerGroup, Member
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import CoordinationError
from vq.message_filter import ALL
from vq.model import TopicPartition

P = [TopicPartition("t", number) for number in range(8)]


class View(GroupMirror):
    """One that counts what it is told."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.hints = 0
        super().__init__(coordinator, "g", on_change=self._hinted)

    def _hinted(self) -> None:
        self.hints += 1


@pytest.fixture
def view(client: MemoryCoordinator) -> View:
    return View(client)


async def join(client: MemoryCoordinator, name: str, *topics: str) -> None:
    await groups.join_group(client, "g", name, Member(topics=topics, nonce=name))


async def calls(ensemble: MemoryEnsemble, work: Callable[[], Awaitable[object]]) -> int:
    before = ensemble.served
    await work()
    return ensemble.served - before


async def test_a_group_that_is_not_there_has_nobody_until_it_is(client, other, view) -> None:
    assert await view.members() == {}
    assert await view.assigned(["t"]) == {}
    await join(other, "a", "t")
    await claims.claim(other, "g", "a", P[3])
    await client.sync()
    assert view.hints > 0
    assert [(name, each.value.topics) for name, each in (await view.members()).items()] == [
        ("a", ("t",))
    ]
    assert await view.assigned(["t"]) == {P[3]: Assigned("a", 1)}


async def test_what_did_not_change_is_not_read_again(ensemble, client, other, view) -> None:
    """Members and assignments, each: nothing when nothing changed, one read for one change."""
    for name in ("a", "b", "c"):
        await join(other, name)
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.members()
    await view.assigned(["t"])
    assert await calls(ensemble, view.members) == 0
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0
    await join(other, "d")
    await claims.release(other, held[5])
    await claims.claim(other, "g", "d", P[5])
    await client.sync()
    assert await calls(ensemble, view.members) == 2  # the names, and the new one
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 1
    assert (await view.assigned(["t"]))[P[5]] == Assigned("d", 2)
    assert list(await view.members()) == ["a", "b", "c", "d"]


async def test_a_changed_contract_is_seen(ensemble, client, other, view) -> None:
    """By the watch of its one read; nothing is read while it stays as it is."""
    await groups.ensure_group(other, "g", ConsumerGroup(topics={"t": ALL}))
    await client.sync()
    assert await view.contract() == ConsumerGroup(topics={"t": ALL})
    assert await calls(ensemble, view.contract) == 0
    policy = FailurePolicy(max_attempts=7)
    hints = view.hints
    changed = await groups.change_contract(other, "g", lambda c: replace(c, failure=policy))
    await client.sync()
    assert view.hints > hints
    assert await calls(ensemble, view.contract) == 1
    assert await view.contract() == changed
    assert changed.failure == policy


async def test_members_that_leave_or_change_are_seen(client, other, view) -> None:
    for name in ("b", "a"):
        await join(other, name)
    assert list(await view.members()) == ["a", "b"]
    await groups.leave_group(other, "g", "a", "a")
    await join(other, "b", "t")
    await client.sync()
    found = await view.members()
    assert {name: each.value.topics for name, each in found.items()} == {"b": ("t",)}


async def test_a_change_while_it_reads_is_read_the_next_time(
    client, other, view, monkeypatch
) -> None:
    """The hint may come before the read returns that armed the watch."""
    await claims.claim(other, "g", "a", P[0])
    get = client.get

    async def get_late(path, *, watch=None):
        node = await get(path, watch=watch)
        if other.session_id in waiting:
            waiting.clear()
            await claims.claim(other, "g", "a", P[0])
            await client.sync()
        return node

    waiting = {other.session_id}
    monkeypatch.setattr(client, "get", get_late)
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 2)}


async def test_a_stale_read_is_made_up_for(ensemble, client, other, view) -> None:
    """The watch that a stale read leaves tells of what it did not show."""
    await claims.claim(other, "g", "a", P[0])
    ensemble.lag(client)
    await claims.claim(other, "g", "a", P[0])
    await claims.claim(other, "g", "a", P[1])
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    ensemble.catch_up(client)
    await client.sync()
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 2), P[1]: Assigned("a", 1)}


@pytest.mark.parametrize("how", ["blink", "expire"])
async def test_a_lost_connection_casts_doubt_on_everything(
    ensemble, client, other, view, how: str
) -> None:
    """Watches went with it: all is read again."""
    await join(other, "a")
    for each in P:
        await claims.claim(other, "g", "a", each)
    await view.members()
    await view.assigned(["t"])
    if how == "blink":
        ensemble.blink(client)
    else:
        await expire(ensemble, client)
    await client.sync()
    assert await calls(ensemble, view.members) == 2
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 1 + len(P)
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0


async def test_a_connection_that_goes_while_it_reads_is_heard(
    ensemble, client, other, view, monkeypatch
) -> None:
    """What was read before it went, with a watch that went along, is read again."""
    await claims.claim(other, "g", "a", P[0])
    get, late = client.get, [True]

    async def get_late(path, *, watch=None):
        node = await get(path, watch=watch)
        if late and path.endswith("/0"):
            late.clear()
            ensemble.blink(client)
            await client.sync()
            await claims.claim(other, "g", "a", P[0])
        return node

    monkeypatch.setattr(client, "get", get_late)
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 2)}
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0


async def test_audits_go_through_everything_by_and_by(
    ensemble, client, other, view, monkeypatch
) -> None:
    """Should a hint get lost after all: each audit looks at the names and at a part of the rest."""
    monkeypatch.setattr(mirror, "AUDITED_AT_ONCE", 3)
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.assigned(["t"])
    ensemble.hold_events(client)
    for each in held:
        await claims.release(other, each)
        await claims.claim(other, "g", "b", each.partition)
    await other.sync()
    ensemble.release_events(client, drop=True)
    seen = []
    for _ in range(3):
        view.audit()
        assert await calls(ensemble, lambda: view.assigned(["t"])) == 4
        found = await view.assigned(["t"])
        seen.append(sum(each.member == "b" for each in found.values()))
    assert seen == [3, 6, 8]


async def test_what_could_not_be_read_is_read_the_next_time(ensemble, client, other, view) -> None:
    for each in P:
        await claims.claim(other, "g", "a", each)
    for skip in range(9):
        ensemble.lose_next_request(client, skip=skip)
        with pytest.raises(ConnectionLost):
            await View(client).assigned(["t"])
        other_view = View(client)
        ensemble.lose_next_reply(client, skip=skip)
        with pytest.raises(ConnectionLost):
            await other_view.assigned(["t"])
        assert len(await other_view.assigned(["t"])) == len(P)


async def test_a_member_that_cannot_be_decoded_is_not_taken_for_gone(client, other, view) -> None:
    """One of a later version, say: as long as it is there, nobody shares without it."""
    await join(other, "a", "t")
    await join(other, "b", "t")
    assert set(await view.members()) == {"a", "b"}
    path = Member.path("g", "b")
    await other.set(path, b'{"v": 99}')
    for _ in range(3):
        with pytest.raises(CoordinationError, match="v99"):
            await view.members()
    await other.set(path, Member(topics=("t",), nonce="b").encode())
    assert set(await view.members()) == {"a", "b"}


async def test_topics_nobody_reads_any_more_are_forgotten(ensemble, client, other, view) -> None:
    await claims.claim(other, "g", "a", P[0])
    await claims.claim(other, "g", "a", TopicPartition("u", 0))
    assert len(await view.assigned(["t", "u"])) == 2
    assert list(await view.assigned(["u"])) == [TopicPartition("u", 0)]
    ensemble.blink(client)
    await client.sync()
    assert await calls(ensemble, lambda: view.assigned(["u"])) == 2


async def test_a_mark_outlives_a_read_that_times_out(
    client: MemoryCoordinator,
    other: MemoryCoordinator,
    view: View,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session goes on, so nothing else says that the value may be old."""
    await claims.claim(other, "g", "a", P[0])
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    await claims.fence_claims(other, "g", "t", Check("", -1))
    await client.sync()
    get = client.get

    async def silent(path: str, **_fields: object) -> None:
        raise ConnectionLost(f"no answer from ZooKeeper about {path!r}")

    monkeypatch.setattr(client, "get", silent)
    with pytest.raises(ConnectionLost):
        await view.assigned(["t"])
    monkeypatch.setattr(client, "get", get)
    assert await view.assigned(["t"]) == {P[0]: Assigned("", 2)}
