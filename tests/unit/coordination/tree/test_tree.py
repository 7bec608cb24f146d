"""The twin's znode tree against a flat model: a multi applies wholly or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.coordination.tree.coordinator import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventKind,
    NoNode,
    Operation,
    Set,
    WatchEvent,
)
from vq.coordination.tree.tree import ZnodeTree
from vq.errors import CoordinationError

PATHS = st.sampled_from(["a", "b", "a/x", "a/y", "a/x/z"])
VERSIONS = st.integers(-1, 2)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, st.binary(max_size=2), st.booleans()),
    st.builds(Set, PATHS, st.binary(max_size=2), VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


def picture(tree: ZnodeTree) -> dict[str, object]:
    """Everything a client could see."""
    found: dict[str, object] = {}
    todo = [""]
    while todo:
        path = todo.pop()
        names = tree.children(path)
        found[path] = (tree.get(path), names)
        todo += [f"{path}/{name}".lstrip("/") for name in names]
    return found


def attempt(tree: ZnodeTree, operations: list[Operation]) -> list[WatchEvent] | CoordinationError:
    """Apply a multi; the events it caused, or the error."""
    try:
        results, events = tree.apply(operations, session=7, now_ms=1)
    except CoordinationError as error:
        return error
    assert len(results) == len(operations)
    return events


@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=12))
def test_a_failing_multi_leaves_no_trace(multis: list[list[Operation]]) -> None:
    """Values, versions, stats and children are as before; the tree stays connected."""
    tree = ZnodeTree()
    for operations in multis:
        before = picture(tree)
        outcome = attempt(tree, operations)
        if isinstance(outcome, CoordinationError):
            assert picture(tree) == before
            assert 0 <= int(outcome.details["index"]) < len(operations)
        else:
            changed = [op for op in operations if not isinstance(op, Check)]
            assert bool(outcome) == bool(changed)


def test_events_tell_what_watches_should_see() -> None:
    """Creation and deletion are told to the node and to its parent."""
    tree = ZnodeTree()
    _, events = tree.apply([Create("a"), Set("a", b"x"), Delete("a")], session=1, now_ms=0)
    assert events == [
        WatchEvent(EventKind.CREATED, "a"),
        WatchEvent(EventKind.CHILDREN, ""),
        WatchEvent(EventKind.CHANGED, "a"),
        WatchEvent(EventKind.DELETED, "a"),
        WatchEvent(EventKind.CHILDREN, ""),
    ]


def test_ephemerals_are_found_by_session() -> None:
    """And may not have children."""
    tree = ZnodeTree()
    tree.apply([Create("a", b"", True), Create("b")], session=1, now_ms=0)
    tree.apply([Create("b/c", b"", True)], session=2, now_ms=0)
    assert tree.ephemerals(1) == ["a"]
    assert tree.ephemerals(2) == ["b/c"]
    with pytest.raises(CoordinationError, match="ephemeral"):
        tree.apply([Create("a/child")], session=1, now_ms=0)


def test_all_parts_of_a_multi_share_a_zxid() -> None:
    """So nodes made together have one czxid, and later ones a higher."""
    tree = ZnodeTree()
    tree.apply([Create("a"), Create("b")], session=1, now_ms=0)
    tree.apply([Create("c")], session=1, now_ms=0)
    a, b, c = (tree.get(path).stat.czxid for path in "abc")
    assert a == b < c


def test_versions_are_checked_inside_a_multi_as_its_parts_leave_them() -> None:
    """A second Set of one node needs the version that the first one made."""
    tree = ZnodeTree()
    tree.apply(
        [Create("a"), Set("a", b"", 0), Set("a", b"", 1), Check("a", 2)], session=1, now_ms=0
    )
    with pytest.raises(BadVersion):
        tree.apply([Set("a", b"", 2), Check("a", 2)], session=1, now_ms=0)
    with pytest.raises(NoNode):
        tree.apply([Delete("a", 2), Check("a", -1)], session=1, now_ms=0)
