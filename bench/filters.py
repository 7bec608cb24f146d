"""What a filter costs a broker for each message, and how many bytes it keeps from being sent.

    python -m bench.filters [--rounds 5] [--messages 20000] [--size 1000]

It runs the loop that a broker runs over log bytes (``store.records.record_filter``), in steps as a
broker does, over batches of 50 messages of which 1 in 100 passes, in turns with the one thing that
every filter does: the check of all checksums. *each* is the processor time per message in
microseconds, *sent* the share of the bytes that would be sent. The last rows are of ranges in which
nothing passes: *spread* filters whose bytes are in other messages, and *absent* ones.

docs/decisions/0130-expressions.md has the figures of the decision.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Final

from vq.broker.serving.reading import FILTER_SCAN_BYTES
from vq.message_filter import Filter
from vq.store.records.codec import intact
from vq.store.records.format import BatchHeader, encode_control
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.store.records.record_filter import filter_records

BATCH: Final = 50
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1_000)
    given = parser.parse_args()
    data = log_bytes(given.messages, given.size)
    runs: dict[str, Callable[[], int]] = {"checksums alone": lambda: checked(data)}
    runs |= {
        name: lambda wanted=wanted: filtered(data, wanted)  # type: ignore[misc]
        for name, wanted in FILTERS.items()
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    sent: dict[str, int] = {}
    for _ in range(given.rounds):
        for name, run in runs.items():
            begin = time.process_time()
            sent[name] = run()
            times[name].append((time.process_time() - begin) / given.messages * 1e6)
    print(f"{given.messages} messages of {given.size} bytes, {len(data)} bytes")
    for name, values in times.items():
        each, share = statistics.median(values), sent[name] / len(data)
        print(f"{name:28} {each:6.2f} µs each   {share:7.2%} sent")


if __name__ == "__main__":
    main()
