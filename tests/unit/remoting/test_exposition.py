"""The page of metrics: whole, and written in steps."""

import asyncio

from prometheus_client.core import GaugeMetricFamily
from support.http import samples

from vq.remoting.exposition import STEP, metrics_page


async def test_a_family_of_many_samples_is_written_in_steps_and_has_one_head() -> None:
    family = GaugeMetricFamily("vq_many", "Many.", labels=("name",))
    for number in range(3 * STEP + 1):
        family.add_metric((f"n{number}",), number)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(turn())
    text = (await metrics_page([family, GaugeMetricFamily("vq_none", "None.")])).body.decode()
    turning.cancel()
    assert turns >= 4
    assert samples(text) == {f'vq_many{{name="n{n}"}}': n for n in range(3 * STEP + 1)}
    assert text.count("# TYPE vq_many gauge") == text.count("# HELP vq_many Many.") == 1
    assert "# TYPE vq_none gauge" in text
