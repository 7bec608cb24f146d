"""News of a cluster for open pages, and values of series for charts."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from vq.console.clusters.history import read_series
from vq.console.pages.page import page
from vq.console.web.context import PageContext
from vq.errors import InvalidArgument
from vq.shown import shown

#: Streams of one visitor, and of all.
_STREAMS_MAX: Final = 8
_ALL_STREAMS_MAX: Final = 500
_SERIES_MAX: Final = 12
_HOURS_MAX: Final = 24 * 400
#: A stream ends after so long, and the page asks again: perhaps who asks may not any more.
STREAM_S: Final = 300.0
#: A line comes at least so often: proxies close what is silent.
_PING_S: Final = 15.0
_streams: Counter[str] = Counter()


@page("/c/{cluster}/events")
async def EVENTS(context: PageContext) -> Response:
    """Tell a page each time that the cluster was looked at; bounded for each visitor."""
    who = context.visitor.person.name or context.visitor.person.address
    if _streams[who] >= _STREAMS_MAX or _streams.total() >= _ALL_STREAMS_MAX:
        return PlainTextResponse("too many open pages", 429, headers={"Retry-After": "10"})
    site = context.site

    async def news() -> AsyncIterator[str]:
        _streams[who] += 1
        try:
            yield "retry: 3000\n\n"
            ends_s = time.monotonic() + STREAM_S
            while time.monotonic() < ends_s:
                try:
                    async with asyncio.timeout(_PING_S):
                        await site.next_look()
                    yield f"event: look\ndata: {site.facts.brokers_look.time_ms}\n\n"
                    await asyncio.sleep(1.0)  # several looks end close together
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            _streams[who] -= 1
            if not _streams[who]:
                del _streams[who]

    return StreamingResponse(
        news(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


@page("/c/{cluster}/series")
async def SERIES(context: PageContext) -> Response:
    """Return the values of series as JSON: ``?s=NAME&s=NAME&hours=6``."""
    names = context.request.query_params.getlist("s")[:_SERIES_MAX]
    hours = context.query.get("hours", "6")
    if not (hours.isascii() and hours.isdigit() and len(hours) < 9) or not (
        1 <= int(hours) <= _HOURS_MAX
    ):
        raise InvalidArgument(f"hours = {shown(hours)} is outside [1, {_HOURS_MAX}]")
    until = int(time.time())
    times, values = await context.console.database.run(
        lambda connection: read_series(
            connection, context.site.name, names, until - int(hours) * 3600, until
        )
    )
    return JSONResponse(
        {
            "times": times,
            "series": [
                {"name": name.partition(" ")[2] or name, "values": values[name]}
                for name in dict.fromkeys(names)
            ],
        }
    )
