"""How full disks were, from the history of a console: a file of ``vq console history export``.

Each line is a JSON object, one interval of one series: ``series``, ``time_s`` (its begin, in
seconds since 1970), ``step_s`` (its width), ``mean``. Series of disks are ``disk_used GROUP/NODE``:
the share that is used of the file system of the node's data directory. Other series are passed
over. Pure functions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark_vq.reports.disks import Key
from pyspark_vq.reports.forecast import POINTS_MIN, Point
from pyspark_vq.reports.holdings import Disk
from vq.errors import InvalidArgument

_SERIES: Final = "disk_used "
#: Intervals of a quarter of an hour are kept for a month: they say most of the next months.
_STEP_S: Final = 900
_LINE_CHARS: Final = 100

#: Group and name of a node.
NodeName = tuple[str, str]


def read_shares(lines: Iterable[str]) -> dict[NodeName, list[Point]]:
    """Return the share that was used of each node's disk, in rising order of time.

    Of each node the quarters of an hour; a history that is too young for them has its minutes.

    Raises:
        InvalidArgument: A line is not of such a file.
    """
    found: dict[NodeName, dict[int, list[Point]]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        sample = _sample(line, number)
        if sample["series"].startswith(_SERIES):
            group, _, node = sample["series"].removeprefix(_SERIES).partition("/")
            middle = sample["time_s"] + sample["step_s"] / 2
            of_node = found.setdefault((group, node), {})
            of_node.setdefault(int(sample["step_s"]), []).append((middle, float(sample["mean"])))
    return {name: sorted(_chosen(by_step)) for name, by_step in found.items()}


def _sample(line: str, number: int) -> Mapping[str, Any]:
    try:
        sample = json.loads(line)
        numbers = [sample[name] for name in ("time_s", "step_s", "mean")]
    except (ValueError, TypeError, KeyError):
        sample, numbers = {}, []
    if not isinstance(sample.get("series"), str) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in numbers
    ):
        raise InvalidArgument(
            f"line {number} of the history is {line.strip()[:_LINE_CHARS]!r}, and not an object "
            "with series, time_s, step_s and mean: make the file with "
            "`vq console history export FILE`"
        )
    found: Mapping[str, Any] = sample
    return found


def _chosen(by_step: Mapping[int, list[Point]]) -> list[Point]:
    quarters = by_step.get(_STEP_S, [])
    if len(quarters) >= POINTS_MIN:
        return quarters
    return by_step[min(by_step)]


def points_of_shares(
    disks: Sequence[Disk], shares: Mapping[NodeName, Sequence[Point]]
) -> dict[Key, list[Point]]:
    """Return how many bytes of disks were in use, as far as it is known.

    A broker publishes one share: of a node with several file systems nobody knows which. A disk
    that had another size then is taken for one of today's.
    """
    systems: dict[NodeName, set[str]] = {}
    for each in disks:
        systems.setdefault((each.group, each.node), set()).add(each.file_system or each.directory)
    return {
        (each.group, each.node, each.directory): [
            (time, share * each.bytes_total) for time, share in shares[each.group, each.node]
        ]
        for each in disks
        if each.bytes_total is not None
        and (each.group, each.node) in shares
        and len(systems[each.group, each.node]) == 1
    }


def together(
    snapshots: Mapping[Key, Sequence[Point]],
    shares: Mapping[Key, Sequence[Point]],
    *,
    now_s: float,
) -> dict[Key, list[Point]]:
    """Return the points of both before now, in rising order of time."""
    return {
        key: sorted(
            point for point in {*snapshots.get(key, ()), *shares.get(key, ())} if point[0] < now_s
        )
        for key in {*snapshots, *shares}
    }
