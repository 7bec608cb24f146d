"""Every link of the console, followed from page to page as somebody clicks."""

import html
import re
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urljoin, urlsplit

import pytest
from support.broker import MemoryCluster
from support.console import RunningConsole
from support.filled_console import NAME, filled_console

from vq.console.database.database import Database

#: Pages after which one that leads to ever more pages is seen.
PAGES_MAX = 300
#: Addresses of one page that ask for the same with other values, and are followed.
ALIKE_MAX = 3


@pytest.fixture
async def filled(cluster: MemoryCluster, database: Database) -> AsyncIterator[RunningConsole]:
    """A console with something on every page."""
    async with filled_console(cluster, database) as made:
        yield made


def _shape(address: str) -> tuple[str, ...]:
    """Return what addresses have in common that differ in the values of their query."""
    parts = urlsplit(address)
    return (parts.path, *sorted(name for name, _ in parse_qsl(parts.query)))


def _links(page: str, address: str) -> set[str]:
    found = {html.unescape(each) for each in re.findall(r'href="([^"#]+)"', page)}
    return {urljoin(address, each) for each in found}


@pytest.mark.slow
async def test_every_link_leads_somewhere_and_every_table_is_a_file(filled) -> None:
    """No page has a dead link; what a table offers as CSV is CSV, and as JSON is a list."""
    browser = filled.browser()
    await browser.log_in(NAME)
    waiting, seen, wrong, files = ["/c/test"], {"/c/test"}, [], 0
    shapes: Counter[tuple[str, ...]] = Counter()
    while waiting:
        address = waiting.pop(0)
        answer = await browser.get(address)
        if answer.status_code not in (200, 303):
            wrong.append((address, answer.status_code))
        kind = answer.headers.get("content-type", "")
        if "export=csv" in address:
            files += 1
            if not kind.startswith("text/csv"):
                wrong.append((address, kind))
        elif "export=json" in address and not isinstance(answer.json(), list):
            wrong.append((address, kind))
        if not kind.startswith("text/html"):
            continue
        for each in sorted(_links(answer.text, address) - seen):
            seen.add(each)
            if re.search(r"[?&](\w+\.)?(sort|desc)=", each) or each.startswith("/static"):
                continue
            shapes[_shape(each)] += 1
            if shapes[_shape(each)] <= ALIKE_MAX:
                waiting.append(each)
        assert len(waiting) < PAGES_MAX
    assert not wrong, "\n".join(map(str, wrong))
    assert files > 15
