"""Which language a browser gets."""

import pytest

from vq.console.web.languages import best_language


@pytest.mark.parametrize(
    ("chosen", "accepted", "expected"),
    [
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"),
        ("", "zh-TW", "zh-CN"),
        ("", "de,en;q=0.5,zh;q=0.4", "en"),
        ("", "fr, zh;q=0.1", "zh-CN"),
        ("en", "zh-CN", "en"),
        ("<x>", "", "en"),
        ("", "zh;q=x,*;q=2,,;;", "en"),
    ],
)
def test_the_language_of_a_browser(chosen, accepted, expected) -> None:
    assert best_language(chosen, accepted) == expected
