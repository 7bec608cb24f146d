"""Where a log-in may lead."""

import pytest

from vq.console.web.addresses import own_path


@pytest.mark.parametrize(
    "wanted", ["", "x", "//e", "///e", "/\\e", "https://e", "/a\n", "/a\\b", "/ a", "javascript:1"]
)
def test_other_sites_are_the_first_page(wanted) -> None:
    assert own_path(wanted) == "/"


def test_own_pages_stay() -> None:
    assert own_path("/c/x/topics?q=1") == "/c/x/topics?q=1"
