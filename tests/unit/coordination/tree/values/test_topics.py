"""Topics of an earlier vq, and the origin of a topic."""

import json

import pytest

from vq.coordination.tree.values.topics import TopicNode
from vq.errors import CoordinationError
from vq.model import TopicOrigin, TopicSettings


def test_a_topic_of_an_earlier_vq_has_no_compression() -> None:
    """Its settings do not name it; another kind than those that we know is an error."""
    document = json.loads(TopicNode(id="ab", settings=TopicSettings()).encode())
    for name in ("compression", "compression_threshold"):
        del document["settings"][name]
    settings = TopicNode.decode("topics/t", json.dumps(document).encode()).settings
    assert (settings.compression, settings.compression_threshold) == (None, None)
    document["settings"]["compression"] = "lz4"
    assert TopicNode.decode("topics/t", json.dumps(document).encode()).settings.compression == "lz4"
    document["settings"]["compression"] = "snappy"
    with pytest.raises(CoordinationError, match="snappy"):
        TopicNode.decode("topics/t", json.dumps(document).encode())


def test_the_origin_of_a_topic_is_stored_as_readable_json() -> None:
    origin = TopicOrigin(client="c", host="h", time_ms=7, auto=True)
    value = TopicNode(id="ab", settings=TopicSettings(), origin=origin)
    text = '"origin": {"client": "c", "host": "h", "time_ms": 7, "auto": true}}'
    assert value.encode().decode().endswith(text)
    assert TopicNode.decode("p", value.encode()) == value


@pytest.mark.parametrize(
    "origin",
    [
        1,
        [],
        {"client": "c"},
        {"client": "c", "host": "h", "time_ms": -1, "auto": True},
        {"client": "c", "host": "h", "time_ms": 1 << 60, "auto": True},
        {"client": 1, "host": "h", "time_ms": 1, "auto": True},
    ],
)
def test_an_origin_that_cannot_be_read_is_unknown(origin: object) -> None:
    """Nothing depends on it, so it must not make the topic unreadable."""
    document = json.loads(TopicNode(id="ab", settings=TopicSettings()).encode())
    data = json.dumps({**document, "origin": origin}).encode()
    assert TopicNode.decode("p", data) == TopicNode(id="ab", settings=TopicSettings())
