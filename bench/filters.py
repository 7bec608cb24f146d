"""What a filter costs a broker for each message, and how many bytes it keeps from being sent.

It runs the loop that a broker runs over log bytes (``store.records.record_filter``), in steps as a
broker does, over batches of 50 messages of which 1 in 100 passes, in turns with the one thing that
every filter does: the check of all checksums. *each* is the processor time per message in
microseconds, *not sent* the share of the bytes that need not be sent. The last rows are of ranges
in which nothing passes: *spread* filters whose bytes are in other messages, and *absent* ones.

docs/decisions/0130-expressions.md has the figures of the decision.
"""

import time
from collections.abc import Callable
from typing import Final

from bench.context import Context, Rounds
from bench.figures import Figure
from vq.broker.serving.reading import FILTER_SCAN_BYTES
from vq.message_filter import Filter
from vq.store.records.codec import intact
from vq.store.records.format import BatchHeader, encode_control
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.store.records.record_filter import filter_records

BATCH: Final = 50
SIZE: Final = 1_000
_MESSAGES: Final = 20_000
FILTERS: Final = {
    "tag, 1 %": Filter(("t7",)),
    "text, 1 %": Filter.of_request((), "trace = 'order-7'"),
    "number, 1 %": Filter.of_request((), "price = 7"),
    "text and number, 1 %": Filter.of_request((), "source = 'shop' AND price BETWEEN 7 AND 7.5"),
    "tag as an expression, 1 %": Filter.of_request((), "TAGS = 't7'"),
    "five numbers, 1 %": Filter.of_request((), "price IN (7, 207, 307, 407, 507)"),
    "number, spread": Filter.of_request((), "price > 1000"),
    "tag, absent": Filter(("nobody",)),
    "text, absent": Filter.of_request((), "trace = 'nobody'"),
}


def log_bytes(count: int, size: int) -> bytes:
    """Return batches of messages with a tag and three headers."""
    found: list[bytes] = []
    start = 0
    for first in range(0, count, BATCH):
        records = b"".join(
            encode_record(
                number + 1,
                b"x" * size,
                b"t%d" % (number % 100),
                encode_properties(
                    Properties(
                        headers={
                            "price": str(number % 100),
                            "source": "shop",
                            "trace": f"order-{number % 100}",
                        }
                    )
                ),
            )
            for number in range(first, first + BATCH)
        )
        header = BatchHeader(start, len(records) + 88, BATCH, 1)
        found += [encode_control(header, 0), records]
        start += header.byte_length
    return b"".join(found)


def filtered(data: bytes, wanted: Filter) -> int:
    """Filter all of it; return how many bytes would be sent."""
    view, at, sent = memoryview(data), 0, 0
    step = FILTER_SCAN_BYTES // wanted.cost
    while at < len(data):
        slices, _, end = filter_records(view[at : at + step], at, wanted)
        sent += sum(map(len, slices))
        at = end
    return sent


def checked(data: bytes) -> int:
    """Check all checksums, in the same steps."""
    at = 0
    while at < len(data):
        at += intact(data[at : at + FILTER_SCAN_BYTES], 0)
    return len(data)


def filters(context: Context) -> Rounds:
    """Filter the same bytes with one filter after the other. There is no broker: only its loop."""
    count = context.pick(_MESSAGES, 1_000)
    data = log_bytes(count, SIZE)
    for _ in range(context.rounds):
        checksums_us, _all = _run(lambda: checked(data), count)
        figures = [Figure("checksums alone, each", checksums_us, "µs")]
        for name, wanted in FILTERS.items():
            each_us, sent = _run(lambda wanted=wanted: filtered(data, wanted), count)  # type: ignore[misc]
            figures += [
                Figure(f"{name}, each", each_us, "µs", checksums_us),
                Figure(f"{name}, not sent", 100 - 100 * sent / len(data), "%"),
            ]
        yield figures


def _run(run: Callable[[], int], count: int) -> tuple[float, int]:
    """Return the processor time for each message in microseconds, and what was returned."""
    begin = time.process_time()
    found = run()
    return (time.process_time() - begin) / count * 1e6, found
