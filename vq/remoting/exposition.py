"""Metrics as a page in Prometheus's text format, made so that the event loop is not held.

Only this module, and those that make the families of metrics, import ``prometheus_client``.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from vq.remoting.http import Page

#: Of the text format that every version of Prometheus reads.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


#: Samples that are written in one step, in about a millisecond.
STEP: Final = 25
_HEAD_LINES: Final = 2  # HELP and TYPE


class _Of:
    """One family, as what ``generate_latest`` collects from."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """See ``Collector.collect``."""
        yield self._family


async def metrics_page(families: Iterable[Metric]) -> Page:
    """Return the page of some families. The loop runs other things after each step."""
    parts = []
    for family in families:
        samples = family.samples
        for start in range(0, max(1, len(samples)), STEP):
            family.samples = samples[start : start + STEP]
            text = generate_latest(_Of(family))
            parts.append(text if start == 0 else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES])
            await asyncio.sleep(0)
    return Page(200, b"".join(parts), CONTENT_TYPE)
