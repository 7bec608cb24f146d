"""From a command to the page that does the same."""

import re

import pytest

from vq.console.pages.table import PAGES
from vq.console.web.commands import PAGES_OF_COMMANDS, page_of


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("vq group reset shop --topic orders --to-latest --yes", ("groups", "shop", "reset")),
        ("vq topic describe 'a b'", ("topics", "a b")),
        ("vq cluster status", ("brokers",)),
        ("vq topic alter TOPIC --min-insync 1", ()),
        ("vq topic alter --min-insync 1", ()),
        ("vq topic describe", ()),
        ("vq doctor", ()),
        ("vq topic describe 'a", ()),
        ("rm topic describe t", ()),
        ("", ()),
    ],
)
def test_a_command_leads_to_its_page_if_there_is_one(command, parts) -> None:
    assert page_of(command) == parts


@pytest.mark.parametrize("command", PAGES_OF_COMMANDS)
def test_each_page_of_a_command_is_there(command) -> None:
    """A link that the table makes leads to a page that can be loaded."""
    path = "/".join(("/c/x", *page_of(f"vq {command} 7")))
    patterns = [re.sub(r"\{\w+\}", "[^/]+", each.path) for each in PAGES if "GET" in each.methods]
    assert any(re.fullmatch(each, path) for each in patterns), path
