"""The time line of a group: who had which partition when."""

import csv
import io
import re

from support.broker import MemoryCluster
from support.console import RunningConsole
from support.filled_console import reading, shared_out

from vq import aio
from vq.console.web.owner_line import LANES_MAX


async def test_so_many_partitions_are_drawn_at_a_time_and_all_are_in_the_table(
    console: RunningConsole, cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A member that has gone is told as such; the table has each claim, also as a file."""
    count = LANES_MAX + 3
    await cluster.create_topic("wide", partitions=count)
    browser = console.browser()
    async with reading(factory, "wide-readers", "wide"):
        await shared_out(factory, "wide-readers", 1)
        page = (await browser.get("/c/test/groups/wide-readers")).text
        assert page.count('class="lane-bar"') == LANES_MAX
        assert page.count('<g class="owner-0">') == LANES_MAX + 1  # and the name below
        assert "nobody knows" not in page
    more = (await browser.get("/c/test/groups/wide-readers?o.page=2&back=24")).text
    assert re.findall(r'"lane-name">(wide/\d+)<', more) == ["wide/20", "wide/21", "wide/22"]
    assert more.count("nobody knows until when") == 3
    for nonsense in ("o.page=99", "back=-1", "back=x", "o.size=9999&o.export=csv"):
        answer = await browser.get(f"/c/test/groups/wide-readers?{nonsense}")
        assert answer.text.count('class="lane-bar"') <= LANES_MAX
    file = (await browser.get("/c/test/groups/wide-readers?h.export=csv")).text
    assert len(list(csv.reader(io.StringIO(file)))) == count + 1
