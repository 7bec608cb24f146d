"""What the audit keeps of a call."""

from vq.console.acts.door import subject_of, text_of


def test_an_act_says_what_it_is_about() -> None:
    assert subject_of({"topic": "t", "now": True}, "topic") == "t"
    assert subject_of({"group": "b1", "node": "n1"}, "") == "b1"
    assert subject_of({"planned": ["a"]}, "planned") == '["a"]'


def test_texts_are_json_and_bounded() -> None:
    assert text_of({"a": b"\xff", "b": float("nan")}) == '{"a": "_w==", "b": null}'
    assert len(text_of("x" * 100_000)) < 21_000
