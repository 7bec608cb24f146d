"""What the audit keeps of a call."""

from vq.console.acts.door import subject_of, text_of
from vq.model import TopicPartition


def test_an_act_says_what_it_is_about() -> None:
    assert subject_of({"topic": "t", "now": True}, "topic") == "t"
    assert subject_of({"group": "b1", "node": "n1"}, "") == "b1"
    assert subject_of({"planned": {"a": 1}}, "planned") == '{"a": 1}'
    assert subject_of({"topics": ["a", "b"]}, "topics") == "a, b"
    blocks = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
    assert subject_of({"blocks": blocks}, "blocks") == "t, u"
    assert subject_of({"topics": [f"t{each}" for each in range(9)]}, "topics").endswith("t4, …")


def test_texts_are_json_and_bounded() -> None:
    assert text_of({"a": b"\xff", "b": float("nan")}) == '{"a": "_w==", "b": null}'
    assert len(text_of("x" * 100_000)) < 21_000
