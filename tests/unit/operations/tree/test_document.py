"""The file of a tree: every value comes back as it was, and a file that was cut is refused."""

import json

import hypothesis
import pytest
from hypothesis import strategies

from vq.coordination.tree.values.slots import SlotCounter
from vq.errors import InvalidArgument
from vq.operations.tree.document import ExportedNode, TreeWriter, lines_of, read_tree


def written(*nodes: ExportedNode) -> str:
    writer = TreeWriter()
    lines = [writer.begin("c", 5_000, "", secrets=False)]
    lines += [writer.node(each) for each in nodes]
    return "".join([*lines, writer.end()])


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    strategies.lists(
        strategies.one_of(
            strategies.binary(max_size=40),
            strategies.text(max_size=20).map(lambda text: text.encode(errors="replace")),
            strategies.dictionaries(strategies.text(max_size=5), strategies.integers()).map(
                lambda value: json.dumps(value).encode()
            ),
        ),
        max_size=5,
    )
)
def test_every_value_comes_back_as_it_was(values: list[bytes]) -> None:
    nodes = [ExportedNode(f"a/{at}", data, at, at + 7) for at, data in enumerate(values)]
    found = read_tree(lines_of(written(*nodes)))
    assert list(found.nodes) == nodes
    assert (found.cluster, found.time_ms, found.below, found.has_secrets) == ("c", 5_000, "", False)


def test_a_value_of_vq_can_be_read_by_people() -> None:
    line = written(ExportedNode("slots", SlotCounter(next=5).encode(), 0, 1)).splitlines()[1]
    assert json.loads(line)["json"] == {"v": 1, "next": 5}


NODE = ExportedNode("a", b"1", 0, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "", "the file is empty"),
        (lambda text: text.rsplit("\n", 2)[0] + "\n", "is cut off: it has 1 nodes"),
        (lambda text: text.replace('"text": "1"', '"text": "2"'), "the checksum does not fit"),
        (lambda text: text.replace('"version": 0', '"version": -1'), "no numbers from 0 on"),
        (lambda text: text.replace('"path": "a"', '"path": "a//b"'), "not that of a node"),
        (lambda text: text.replace('"path": "a"', '"path": "../a"'), "ZooKeeper refuses"),
        (lambda text: text.replace('"v": 1', '"v": 2', 1), "reads v1; upgrade vq here"),
        (lambda text: text.replace("vq tree", "others"), "is not 'vq tree'"),
        (lambda text: text + "{}\n", "follows the last line"),
        (lambda text: "\n" + text, "line 1 is none of an exported tree"),
        (lambda text: text.replace('"nodes": 1', '"nodes": 2'), "1 nodes came before it"),
    ],
)
def test_what_is_no_whole_file_is_refused(change, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument, match=says):
        read_tree(lines_of(change(written(NODE))))


def test_a_node_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="comes twice"):
        read_tree(lines_of(written(NODE, NODE)))
