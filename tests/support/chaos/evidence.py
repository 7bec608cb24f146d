"""What a run leaves behind, for the judge: all logs of all nodes, and what ZooKeeper took.

The files are read without vq's code (``support.block_files``), and so are ZooKeeper's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.block_files import read_partition
from support.chaos.groups import TOPIC, Groups
from support.chaos.load import GROUP
from support.faults import read_back
from support.judge import Copy
from support.zookeeper_log import claims_and_commits, presences, read_all_changes, reigns

import vq
from vq.testing.waiting import block_until

#: Within this time after the last fault all copies must be equal (T-PART says 15 s).
EQUAL_S = 60.0


def final_log(
    factory: vq.MessageFactory,
) -> tuple[dict[int, list[tuple[int, str]]], dict[int, int]]:
    """Return all messages of the topic as clients read them, and the high watermarks."""
    with factory.create_consumer() as consumer:
        numbers = [each.partition for each in factory.get_partitions_for_topic(TOPIC)]
        ends = {number: consumer.get_bounds(TOPIC, number).latest for number in numbers}
    return read_back(factory, TOPIC), ends


def copies(groups: Groups, watermarks: Mapping[int, int]) -> list[Copy]:
    """Return what all nodes hold, once all of them have everything; or what they have then."""
    found: list[Copy] = []

    def all_equal() -> bool:
        found[:] = read_copies(groups)
        return all(copy.start + len(copy.data) >= watermarks[copy.partition] for copy in found)

    try:
        block_until(all_equal, timeout_s=EQUAL_S)
    except AssertionError:
        pass  # the judge tells which
    return found


def read_copies(groups: Groups) -> list[Copy]:
    """Return what all nodes hold now."""
    return [
        _read_copy(name, directory)
        for name in sorted(groups.wanted)
        for directory in sorted(groups.data(name).glob(f"{TOPIC}/[0-9]*"))
    ]


def _read_copy(name: str, directory: Path) -> Copy:
    files = read_partition(directory)
    blocks = sorted(directory.glob("*.block"))
    starts = [int(path.stem) for path in blocks]
    data = b"".join(
        path.read_bytes()[: end - start]
        for path, start, end in zip(blocks, starts, [*starts[1:], files.end], strict=True)
    )
    return Copy(name, int(directory.name), starts[0] if starts else 0, data)


def of_zookeeper(directory: Path, cluster: str) -> dict[str, Sequence[Any]]:
    """Return what ZooKeeper took, by the names that ``judge.Evidence`` has for it."""
    changes = read_all_changes(directory)
    claims, commits = claims_and_commits(changes, cluster, GROUP, TOPIC)
    return {
        "claims": claims,
        "commits": commits,
        "reigns": reigns(changes, cluster),
        "presences": presences(changes, cluster),
    }
