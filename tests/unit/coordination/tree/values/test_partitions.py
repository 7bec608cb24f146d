"""What a partition's placement and a list of changes refuse and tell."""

import pytest

from vq.coordination.tree.values.partitions import (
    PLACEMENT_CHANGES_MAX,
    Partition,
    PlacementChanges,
)
from vq.errors import CoordinationError


@pytest.mark.parametrize(
    "data",
    [
        b'{"v": 1, "placement": [{"group": "b", "start": 5, "end": 4}], "state": "rw"}',
        b'{"v": 1, "placement": [{"group": "b", "start": -1}], "state": "rw"}',
        b'{"v": 1, "placement": [{"group": 1, "start": 0}], "state": "rw"}',
        b'{"v": 1, "placement": [], "state": "open"}',
    ],
)
def test_impossible_placements_are_refused(data: bytes) -> None:
    """A partition is not served from nonsense."""
    with pytest.raises(CoordinationError, match="partition"):
        Partition.decode("topics/t/partitions/0", data)


def test_a_list_of_changes_tells_what_was_missed() -> None:
    """One entry for each version of the node; None where it does not reach back, or is damaged."""
    path = PlacementChanges.path("t")
    changes = PlacementChanges()
    for number in (7, 3, 3):
        changes = changes.with_change(number)
    changes = PlacementChanges.of_node(path, changes.encode(), 3)
    assert [changes.since(version) for version in (0, 1, 2, 3)] == [{7, 3}, {3}, {3}, set()]
    assert changes.since(4) is None, "the node of another topic"
    for _ in range(PLACEMENT_CHANGES_MAX):
        changes = changes.with_change(1)
    assert changes.since(3) == {1}
    assert changes.since(2) is None
    for data, version in ((changes.encode(), 4), (b"", 5), (b"{", 6), (b"[]", 7)):
        unknown = PlacementChanges.of_node(path, data, version)
        assert (unknown.since(version), unknown.since(version - 1)) == (set(), None)
        assert unknown.with_change(2).since(version) == {2}
