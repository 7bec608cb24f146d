"""Work that is counted instead of timed, so that a claim on its growth holds on any machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: What is asked for in the figures of one claim.
PARTITION_COUNTS = (10, 100, 1_000, 4_000)


def count_lines(work: Callable[[], object], *files: str) -> int:
    """Run ``work``; return how many lines of code were executed in files with these endings."""
    lines = 0

    def inside(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return inside

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        return inside if frame.f_code.co_filename.endswith(files) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def check_linear(what: str, costs: dict[int, int]) -> None:
    """Print a table of costs by size; fail if the cost of one grows with their number."""
    print(f"{what}:")
    for size, cost in costs.items():
        print(f"{size:>8} {cost:>10} {cost / size:>10.1f} each")
    each = {size: cost / size for size, cost in costs.items()}
    smallest = min(costs)
    assert max(each.values()) <= 1.5 * each[smallest], f"{what} grows faster than their number"
