"""The kinds of nodes are those that the tree has, as its own page tells them."""

import re

import pytest

from vq.coordination.tree import paths
from vq.coordination.tree.values.consumers import Member, Owner
from vq.coordination.tree.values.topics import DeletionFence, TopicNode
from vq.operations.tree.layout import KINDS, kind_of


def test_every_value_that_the_page_of_paths_names_has_a_kind_as_it_says() -> None:
    text = paths.__doc__ or ""
    told = re.findall(r"^ +\S+ +(ephemeral +)?([A-Z]\w+) ", text, re.MULTILINE)
    assert len(told) > 20
    of_kinds = {each.value.__name__: each for each in KINDS if each.value is not None}
    for ephemeral, name in told:
        assert of_kinds[name].is_ephemeral is bool(ephemeral), name
    assert of_kinds.keys() - {name for _, name in told} == {"WriteTask", "WriteTopic"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("topics/t", TopicNode),
        ("topics/t/deleting-x", DeletionFence),
        (Owner.path("g", "t", 12), Owner),
        (Member.path("g", "m"), Member),
        (Member.path("g", "m~"), Member),
    ],
)
def test_a_path_has_the_kind_of_its_pattern(path: str, value: type) -> None:
    found = kind_of(path)
    assert found is not None
    assert found.value is value


@pytest.mark.parametrize(
    "path", ["mine", "topics/t/other", "topics/t/partitions/x", "consumers/g/offsets/t/1/2"]
)
def test_a_node_that_no_vq_makes_has_none(path: str) -> None:
    assert kind_of(path) is None


def test_the_place_of_a_member_may_be_of_no_session() -> None:
    found = kind_of(Member.path("g", "m~"))
    assert found is not None
    assert not found.is_ephemeral
