"""A group as a member knows it: everything once, then what changed, never less than the tree."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from support.coordination import expire

from vq.coordination.groups import claims, groups
from vq.coordination.groups.claims import Assigned
from vq.coordination.groups.group_mirror import GroupMirror, owners_made
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import ConnectionLost, Listing, Read, Stat
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Member
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import CoordinationError
from vq.message_filter import ALL
from vq.model import TopicPartition

pytestmark = pytest.mark.virtual_time

P = [TopicPartition("t", number) for number in range(8)]


class View(GroupMirror):
    """One that counts what it is told."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.hints = 0
        self.moves = 0
        super().__init__(coordinator, "g", on_change=self._hinted, on_moves=self._moved)

    def _hinted(self) -> None:
        self.hints += 1

    def _moved(self) -> None:
        self.moves += 1


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
    """Nothing when nothing changed; the members together, and the claims that may be new ones."""
    for name in ("a", "b", "c"):
        await join(other, name)
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.members()
    await view.assigned(["t"])
    assert await calls(ensemble, view.members) == 0
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0
    await join(other, "d")
    await claims.release(other, held[5])
    await client.sync()
    assert await calls(ensemble, view.members) == 2  # the names, and what is behind them
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 1  # the owners: none is new
    await claims.claim(other, "g", "d", P[5])
    await client.sync()
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 2  # the owners, and the new one
    assert (await view.assigned(["t"]))[P[5]] == Assigned("d", 2)
    assert list(await view.members()) == ["a", "b", "c", "d"]


async def test_a_claim_between_two_looks_is_seen_although_the_owners_are_the_same(
    ensemble, client, other, view
) -> None:
    """Nobody knows which one it was, so all are read: with few requests."""
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.assigned(["t"])
    moves = view.moves
    await claims.release(other, held[5])
    await claims.claim(other, "g", "d", P[5])
    await client.sync()
    assert view.moves == moves + 1  # once, whatever follows
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 3
    assert (await view.assigned(["t"]))[P[5]] == Assigned("d", 2)


class Reads:
    """Notes how many nodes are read at a time."""

    def __init__(self, client: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self._get_many = client.get_many
        monkeypatch.setattr(client, "get_many", self._noted)

    async def _noted(self, paths: Sequence[str]) -> list[Read]:
        self.sizes.append(len(paths))
        return await self._get_many(paths)


async def test_of_moves_that_were_expected_nothing_else_is_read(
    client, other, view, monkeypatch
) -> None:
    """As many owner nodes were made as their assignments tell of: it was nobody else."""
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.assigned(["t"])
    reads = Reads(client, monkeypatch)
    view.expect({P[2], P[5], P[6]})
    for each in held[5], held[2]:
        await claims.release(other, each)
        await claims.claim(other, "g", "d", each.partition)
    await client.sync()
    found = await view.assigned(["t"])
    assert {each for each in P if found[each] == Assigned("d", 2)} == {P[2], P[5]}
    assert reads.sizes == [3]


@pytest.mark.parametrize("how", ["another", "reset", "reset before"])
async def test_of_moves_that_were_not_expected_everything_is_read(
    client, other, view, monkeypatch, how: str
) -> None:
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await view.assigned(["t"])
    reads = Reads(client, monkeypatch)
    view.expect({P[5]})
    occasion = claims.Occasion(1, {"a", "d"})
    if how == "reset before":
        await ZooKeeperOffsets(other).reset("g", P[5], CommittedOffset(offset=0))
    await claims.release(other, held[5])
    await claims.claim(other, "g", "d", P[5], occasion=occasion)
    if how == "reset":
        await ZooKeeperOffsets(other).reset("g", P[5], CommittedOffset(offset=0))
    await claims.claim(other, "g", "a", P[7])
    await client.sync()
    found = await view.assigned(["t"])
    assert found[P[7]].version == 2
    assert found[P[5]].version == (2 if how == "another" else 3)
    assert reads.sizes == [1, len(P)]


def listing(*names: str, children_version: int, czxid: int = 1) -> Listing:
    return Listing(list(names), Stat(0, czxid, 0, 0, children_version))


@pytest.mark.parametrize(
    ("before", "now", "made"),
    [
        (None, listing("0", children_version=1), None),
        (listing("0", children_version=1), None, None),
        (listing("0", children_version=1), listing("0", children_version=1), 0),
        (listing("0", "1", children_version=2), listing("0", children_version=3), 0),
        (listing("0", children_version=1), listing("0", "1", children_version=2), 1),
        (listing("0", children_version=1), listing("1", children_version=3), 1),
        (listing("0", children_version=1), listing("0", children_version=3), 1),
        (listing("0", children_version=1), listing("0", "1", children_version=4), 2),
        (listing("0", children_version=1), listing("0", children_version=1, czxid=2), None),
    ],
    ids=[
        "not listed before",
        "the list is gone",
        "nothing",
        "released",
        "claimed",
        "one of each",
        "claimed anew",
        "claimed, and one anew",
        "another list of that name",
    ],
)
def test_how_many_claims_were_made_between_two_lists_of_owners(before, now, made) -> None:
    assert owners_made(before, now) == made


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
    get_many = client.get_many

    async def get_late(paths):
        nodes = await get_many(paths)
        if other.session_id in waiting:
            waiting.clear()
            await claims.claim(other, "g", "a", P[0])
            await client.sync()
        return nodes

    waiting = {other.session_id}
    monkeypatch.setattr(client, "get_many", get_late)
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
    """Watches went with it: all is looked at again, and read if it may have changed."""
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
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 1
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0


async def test_a_connection_that_goes_while_it_reads_is_heard(
    ensemble, client, other, view, monkeypatch
) -> None:
    """What was read before it went, with a watch that went along, is read again."""
    await claims.claim(other, "g", "a", P[0])
    get_many, late = client.get_many, [True]

    async def get_late(paths):
        nodes = await get_many(paths)
        if late and paths[0].endswith("/0"):
            late.clear()
            ensemble.blink(client)
            await client.sync()
            await claims.claim(other, "g", "a", P[0])
        return nodes

    monkeypatch.setattr(client, "get_many", get_late)
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 2)}
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0


async def test_an_audit_makes_up_for_a_lost_watch(ensemble, client, other, view) -> None:
    """Should a hint get lost after all: each audit looks at all names, and at what they tell."""
    held = [await claims.claim(other, "g", "a", each) for each in P]
    await join(other, "a")
    await view.members()
    await view.assigned(["t"])
    ensemble.hold_events(client)
    for each in held:
        await claims.release(other, each)
        await claims.claim(other, "g", "b", each.partition)
    await join(other, "b")
    await other.sync()
    ensemble.release_events(client, drop=True)
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 0
    view.audit()
    assert {each.member for each in (await view.assigned(["t"])).values()} == {"b"}
    assert set(await view.members()) == {"a", "b"}
    view.audit()
    assert await calls(ensemble, lambda: view.assigned(["t"])) == 1
    assert await calls(ensemble, view.members) == 2


async def test_what_could_not_be_read_is_read_the_next_time(ensemble, client, other, view) -> None:
    for each in P:
        await claims.claim(other, "g", "a", each)
    for skip in range(3):
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
    view.audit()
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
    assert await calls(ensemble, lambda: view.assigned(["u"])) == 1


async def test_a_mark_outlives_a_read_that_times_out(
    client: MemoryCoordinator,
    other: MemoryCoordinator,
    view: View,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session goes on, so nothing else says that the value may be old."""
    await claims.claim(other, "g", "a", P[0])
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 1)}
    await claims.claim(other, "g", "a", P[0])
    await client.sync()
    listing = client.listing

    async def silent(path: str, **_fields: object) -> None:
        raise ConnectionLost(f"no answer from ZooKeeper about {path!r}")

    monkeypatch.setattr(client, "listing", silent)
    with pytest.raises(ConnectionLost):
        await view.assigned(["t"])
    monkeypatch.setattr(client, "listing", listing)
    assert await view.assigned(["t"]) == {P[0]: Assigned("a", 2)}
