"""A node is read back as it was written, and a multi applies all of its parts or none."""

import asyncio
from typing import Any

import pytest
from support.coordinator_contract import Ensemble

from vq.clock import SystemClock
from vq.coordination.tree.coordinator import (
    NODE_BYTES_MAX,
    OPEN,
    READS_PER_CALL_MAX,
    BadVersion,
    Check,
    Coordinator,
    Create,
    Delete,
    Grant,
    Node,
    NodeExists,
    NodeRights,
    NoNode,
    NotAllowed,
    NotEmpty,
    Set,
)
from vq.coordination.zookeeper import kazoo_reads
from vq.errors import CoordinationError, InvalidArgument


async def test_a_created_node_is_read_back_with_its_stat(ensemble: Ensemble) -> None:
    """Create returns the stat that get shows; a new node has version 0 and no owner."""
    client = await ensemble.client()
    stat = await client.create("a", b"value")
    node = await client.get("a")
    assert node.data == b"value"
    assert node.stat == stat
    assert (stat.version, stat.ephemeral_owner) == (0, 0)
    assert stat.czxid > 0
    assert abs(stat.mtime_ms - SystemClock().wall_ms()) < 60_000


async def test_set_raises_the_version_and_refuses_an_old_one(ensemble: Ensemble) -> None:
    """A versioned set is compare-and-set; -1 sets whatever is there."""
    client = await ensemble.client()
    await client.create("a", b"0")
    assert (await client.set("a", b"1", version=0)).version == 1
    with pytest.raises(BadVersion) as caught:
        await client.set("a", b"2", version=0)
    assert caught.value.path == "a"
    assert (await client.set("a", b"3")).version == 2
    assert (await client.get("a")).data == b"3"


async def test_a_node_made_again_has_a_new_czxid_and_version_0(ensemble: Ensemble) -> None:
    """Why a version check on a re-created node is no fence, and the czxid is an incarnation."""
    client = await ensemble.client()
    first = await client.create("a")
    await client.set("a", b"x")
    await client.delete("a")
    second = await client.create("a")
    assert second.version == 0
    assert second.czxid > first.czxid


async def test_missing_nodes_are_told(ensemble: Ensemble) -> None:
    """Reads and writes of a missing node raise NoNode with its path; exists returns None."""
    client = await ensemble.client()
    assert await client.exists("no") is None
    for call in (
        client.get("no"),
        client.children("no"),
        client.set("no", b""),
        client.delete("no"),
    ):
        with pytest.raises(NoNode) as caught:
            await call
        assert caught.value.path == "no"
    with pytest.raises(NoNode):
        await client.create("no/child")


@pytest.mark.parametrize("server", ["that knows it", "before ZooKeeper 3.6"])
async def test_many_nodes_are_read_with_one_call(
    ensemble: Ensemble, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, None for a missing one; a server that refuses it is asked for each node."""
    if server != "that knows it":
        monkeypatch.setattr(kazoo_reads.ReadMany, "type", 99)  # a request that no server knows
    client = await ensemble.client()
    assert await client.get_many([]) == []
    first = await client.create("a", b"1")
    await client.create("a/ü", b"", parents=True)
    found = await client.get_many(["a/ü", "missing", "a", "missing/deep", "a"])
    values = [node.data if isinstance(node, Node) else node for node in found]
    assert values == [b"", None, b"1", None, b"1"]
    assert isinstance(found[2], Node)
    assert found[2].stat == first._replace(children_version=1)
    for number in range(READS_PER_CALL_MAX):
        await client.create(f"a/{number}", b"%d" % number)
    many = await client.get_many([f"a/{number}" for number in range(READS_PER_CALL_MAX)])
    assert [isinstance(node, Node) and int(node.data) for node in many] == list(range(len(many)))
    with pytest.raises(InvalidArgument, match=f"exceed {READS_PER_CALL_MAX}"):
        await client.get_many(["a"] * (READS_PER_CALL_MAX + 1))


@pytest.mark.parametrize("server", ["that knows it", "before ZooKeeper 3.6"])
async def test_a_node_that_may_not_be_read_fails_no_other_one(
    ensemble: Ensemble, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error names it; alone it is raised, and its value can still be set."""
    if server != "that knows it":
        monkeypatch.setattr(kazoo_reads.ReadMany, "type", 99)
    client = await ensemble.client()
    await client.create("a/b", b"1", parents=True)
    await ensemble.let_read(client, "a", allowed=False)
    try:
        denied, found, missing = await client.get_many(["a", "a/b", "c"])
        assert isinstance(denied, NotAllowed)
        assert (denied.path, denied.details["path"]) == ("a", "a")
        assert isinstance(found, Node)
        assert (found.data, missing) == (b"1", None)
        for call in (client.get("a"), client.children("a")):
            with pytest.raises(NotAllowed, match="does not allow this to vq: 'a'"):
                await call
        assert (await client.set("a", b"2")).version == 1
    finally:
        await ensemble.let_read(client, "a", allowed=True)
    assert (await client.get("a")).data == b"2"


async def test_the_acl_of_a_node_is_its_own(ensemble: Ensemble) -> None:
    """It is what was set last, and says nothing about the nodes below."""
    client = await ensemble.client()
    await client.create("a/b", parents=True)
    assert await client.acl("a") == OPEN
    grants = frozenset({Grant("world", "anyone", NodeRights.ALL & ~NodeRights.WRITE)})
    await client.set_acl("a", grants)
    assert await client.acl("a") == grants
    assert await client.acl("a/b") == OPEN
    await client.set_acl("a", OPEN)
    for call in (client.acl("none"), client.set_acl("none", OPEN)):
        with pytest.raises(NoNode):
            await call


async def test_a_node_is_created_once(ensemble: Ensemble) -> None:
    """The second create raises NodeExists and changes nothing."""
    client = await ensemble.client()
    await client.create("a", b"first")
    with pytest.raises(NodeExists):
        await client.create("a", b"second")
    assert (await client.get("a")).data == b"first"


async def test_parents_are_made_on_request(ensemble: Ensemble) -> None:
    """With parents=True the missing nodes above are made, empty and persistent."""
    client = await ensemble.client()
    await client.create("a/b/c", b"x", parents=True, ephemeral=True)
    assert (await client.get("a/b")).data == b""
    await client.create("a/b/d", parents=True)
    assert await client.children("a/b") == ["c", "d"]


async def test_children_are_sorted_names(ensemble: Ensemble) -> None:
    """Names only, sorted; the root is the empty path."""
    client = await ensemble.client()
    for name in ("b", "c", "a"):
        await client.create(name)
    assert await client.children("") == ["a", "b", "c"]


async def test_a_listing_counts_the_children_that_came_and_went(ensemble: Ensemble) -> None:
    """The names, and the node's stat at that moment; a failed multi counts for nothing."""
    client = await ensemble.client()
    await client.create("a", b"parent")
    empty = await client.listing("a")
    assert empty.names == []
    assert empty.stat == (await client.get("a")).stat

    async def counted() -> int:
        now = (await client.listing("a")).stat
        return now.children_version - empty.stat.children_version

    await client.create("a/2")
    await client.create("a/1")
    assert (await client.listing("a")).names == ["1", "2"]
    assert await counted() == 2
    await client.delete("a/1")
    assert await counted() == 3
    await client.set("a/2", b"of the child")
    await client.set("a", b"of the node")
    assert await counted() == 3
    await client.multi([Delete("a/2"), Create("a/2")])
    assert await counted() == 5
    with pytest.raises(NodeExists):
        await client.multi([Create("a/3"), Create("a/2")])
    assert await counted() == 5
    found = await client.listing("a")
    assert (found.stat.version, found.stat.czxid) == (1, empty.stat.czxid)
    with pytest.raises(NoNode):
        await client.listing("b")


async def test_delete_checks_version_and_children(ensemble: Ensemble) -> None:
    """A delete with an old version, or of a node with children, changes nothing."""
    client = await ensemble.client()
    await client.create("a/b", parents=True)
    with pytest.raises(NotEmpty):
        await client.delete("a")
    with pytest.raises(BadVersion):
        await client.delete("a/b", version=3)
    await client.delete("a/b", version=0)
    assert await client.children("a") == []


async def test_clusters_do_not_see_each_other(ensemble: Ensemble) -> None:
    """Paths are relative to the cluster's root."""
    one, two = await ensemble.client("one"), await ensemble.client("two")
    await one.create("a", b"1")
    assert await two.exists("a") is None


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", "a/../b", ".", "a\0b"])
async def test_paths_that_are_not_ours_are_refused(ensemble: Ensemble, path: str) -> None:
    """Absolute and dotted paths never reach ZooKeeper."""
    client = await ensemble.client()
    with pytest.raises(InvalidArgument):
        await client.create(path)


async def test_values_have_a_bound(ensemble: Ensemble) -> None:
    """The largest value is taken, one byte more is refused before it is sent."""
    client = await ensemble.client()
    await client.create("a", b"x" * NODE_BYTES_MAX)
    assert len((await client.get("a")).data) == NODE_BYTES_MAX
    with pytest.raises(InvalidArgument, match=str(NODE_BYTES_MAX)):
        await client.set("a", b"x" * (NODE_BYTES_MAX + 1))


async def test_a_multi_applies_everything(ensemble: Ensemble) -> None:
    """All four operations work together; a Set answers with its new stat."""
    client = await ensemble.client()
    await client.create("a", b"0")
    await client.create("b")
    results = await client.multi(
        [Check("a", 0), Set("a", b"1", 0), Create("c", b"new", True), Delete("b")]
    )
    assert [r is not None for r in results] == [False, True, False, False]
    assert results[1] is not None
    assert results[1].version == 1
    assert await client.children("") == ["a", "c"]
    assert (await client.get("c")).stat.ephemeral_owner == client.session_id


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Check("a", 7), BadVersion),
        (Check("no", -1), NoNode),
        (Set("a", b"2", 7), BadVersion),
        (Set("no", b"2"), NoNode),
        (Create("a"), NodeExists),
        (Create("no/child"), NoNode),
        (Delete("a", 7), BadVersion),
        (Delete("no"), NoNode),
        (Delete("parent"), NotEmpty),
    ],
)
async def test_a_multi_with_a_failing_part_raises_and_changes_nothing(
    ensemble: Ensemble, operation: Any, error: type[CoordinationError]
) -> None:
    """The error is that of the failing part and names its index; nothing else was applied."""
    client = await ensemble.client()
    await client.create("a", b"0")
    await client.create("parent/child", parents=True)
    with pytest.raises(error) as caught:
        await client.multi([Set("a", b"1"), Create("d"), operation, Create("e")])
    # The failing part is seen in the tree as the parts before it left it.
    assert caught.value.details["index"] == 2
    assert caught.value.details["path"] == operation.path
    assert (await client.get("a")).data == b"0"
    assert await client.children("") == ["a", "parent"]


async def test_a_multi_may_replace_a_node(ensemble: Ensemble) -> None:
    """Delete and create of one path in one multi: the new node has a new czxid."""
    client = await ensemble.client()
    before = await client.create("a", b"old", ephemeral=True)
    await client.multi([Delete("a", 0), Create("a", b"new", True)])
    after = await client.get("a")
    assert after.data == b"new"
    assert after.stat.czxid > before.czxid


async def test_multis_are_atomic_between_clients(ensemble: Ensemble) -> None:
    """Of many compare-and-sets on one version exactly one wins."""
    one, two = await ensemble.client(), await ensemble.client()
    await one.create("a", b"")

    async def attempt(client: Coordinator, name: str) -> bool:
        try:
            await client.multi([Set("a", name.encode(), 0), Create(name)])
        except BadVersion:
            return False
        return True

    tries = [attempt(client, f"{n}-{i}") for i in range(8) for n, client in enumerate((one, two))]
    won = await asyncio.gather(*tries)
    assert sum(won) == 1
    assert len(await one.children("")) == 2


async def test_a_multi_has_bounds(ensemble: Ensemble) -> None:
    """Empty and oversize multis are refused before they are sent."""
    client = await ensemble.client()
    with pytest.raises(InvalidArgument):
        await client.multi([])
    with pytest.raises(InvalidArgument):
        await client.multi([Check("", -1)] * 1001)
    with pytest.raises(InvalidArgument):
        await client.multi([Create("a", b"x" * NODE_BYTES_MAX), Create("b", b"x")])
