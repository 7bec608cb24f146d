"""Where a log-in may lead."""

import pytest

from vq.console.web.addresses import own_path, path_of


@pytest.mark.parametrize(
    "wanted", ["", "x", "//e", "///e", "/\\e", "https://e", "/a\n", "/a\\b", "/ a", "javascript:1"]
)
def test_other_sites_are_the_first_page(wanted) -> None:
    assert own_path(wanted) == "/"


def test_own_pages_stay() -> None:
    assert own_path("/c/x/topics?q=1") == "/c/x/topics?q=1"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://127.0.0.1:8120/c/a/topics?q=x#y", "/c/a/topics?q=x"),
        ("http://evil.example//evil.example/", "/"),
        ("http://[broken", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_the_path_of_an_address_leads_to_this_console(address: str, path: str) -> None:
    assert path_of(address) == path
