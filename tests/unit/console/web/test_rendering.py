"""Texts in templates."""

from vq.console.web.rendering import with_code


def test_what_stands_between_backticks_is_code_and_the_rest_is_escaped() -> None:
    assert with_code("see `vq <x>` & <b>") == "see <code>vq &lt;x&gt;</code> &amp; &lt;b&gt;"
    assert with_code("a ` b <i>") == "a ` b &lt;i&gt;"
    assert with_code("") == ""
