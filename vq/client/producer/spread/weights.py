"""The share of a topic's messages that each partition gets, computed from load. No I/O.

    wish       how much a partition could take, by the sense of "least used"
    share      the wish, divided by the mean wish of the topic; bounded from below
    weight     the share that is in use: it follows the share in steps, so that many producers,
               which all read the same old load, do not all turn to the same partition at once

**Wishes.** ``n`` is the number of the topic's partitions on the same broker. An unknown wish counts
as the mean of the known ones.

    least-stored   most - stored + floor      most: the bytes of the fullest partition
                   floor = 1 MiB + most / 20 + 30 s of the traffic of an average partition
    headroom       (capacity - rate) / n      but at least capacity / 20 / n. A broker that is busy
                   for less than 5 % has at least the mean wish: its capacity is a lower bound
    least-loaded   (1.05 - busy) / (1 + wait / 10 ms) / n
                   wait = flush_ms * (1 + queue_depth)

The floor of ``least-stored`` keeps partitions that are nearly equal nearly equal, and bounds how
far they can overshoot before the next reading.

**Shares.** A share is at least 1/16, one place in the ring of ``spread``. Whatever the sense is, a
partition on a disk that is 85 % full has the share 1/64, and one on a disk that is 90 % full has
none, unless all disks are that full.

**Steps.** Shares are scaled to a sum of 1. A weight within 10 % of its share stays. Another one
moves a part of the way (``gain``), to between half and twice the weight before. Then all weights
that are not at such a bound are scaled by one factor, so that their sum is 1. The gain of
``least-stored`` is 1. That of the others is half of the share of capacity that is free, but at
least 0.05: if traffic R meets the capacity C, a small shift of weights changes the wishes by
R / (C - R) times as much, so a full step would overshoot more and more as R approaches C.

Example, ``least-stored`` without traffic: 40, 20 and 0 MiB. The floor is 1 + 40 / 20 = 3 MiB, the
wishes are 3, 23 and 43, so the shares are 3/69, 23/69 and 43/69: 4 %, 33 % and 62 %. The weights
before were 1/3 each. The first one falls to its bound 1/6, the second one stays, the third one
rises to 43/69. Their sum is 0.167 + 0.333 + 0.623 = 1.123, so the second and the third are scaled
by (1 - 1/6) / (1/3 + 43/69) = 0.871. The weights are 17 %, 29 % and 54 %.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from vq.client.producer.spread.partitioner import PartitionLoad, Sense
from vq.limits import LOAD_BUSY_MIN, MIB

#: Shares of the disk in use from which a partition gets almost nothing, and nothing. Brokers refuse
#: messages at the second one by default.
DISK_HIGH: Final = 0.85
DISK_FULL: Final = 0.90
#: Least share of a partition, and the one on a disk above ``DISK_HIGH``; an even share is 1.
SHARE_MIN: Final = 1 / 16
SHARE_DISK_HIGH: Final = 1 / 64
#: A weight moves by at most this factor at one reading ...
STEP_MAX: Final = 2.0
#: ... and stays where it is within this part of itself.
DEAD_BAND: Final = 0.10
GAIN_MIN: Final = 0.05
#: The floor of ``least-stored``.
FLOOR_BYTES: Final = MIB
FLOOR_PART: Final = 1 / 20
FLOOR_TRAFFIC_S: Final = 30.0
#: What a broker that is busy all the time still counts as free, as a part of its capacity.
FREE_MIN: Final = 0.05
#: The wait that halves the wish of ``least-loaded``.
WAIT_MS: Final = 10.0


def weights(
    sense: Sense, loads: Sequence[PartitionLoad], previous: Sequence[float] | None
) -> list[float]:
    """Return the weight of each partition; their sum is 1 (none for no partitions).

    A weight is 0 only for a partition on a full disk.

    Args:
        sense: What "least used" means.
        loads: Of all partitions of one topic.
        previous: What was returned at the reading before, perhaps for fewer partitions; None: there
            was none, and the weights are the shares.
    """
    if not loads:
        return []
    shares = _shares(_WISHES[sense](loads), loads)
    if previous is None:
        return shares
    return _step(shares, _base(shares, previous), _gain(sense, loads))


# Wishes ---------------------------------------------------------------------------------------
Wishes = list[float | None]


def _least_stored(loads: Sequence[PartitionLoad]) -> Wishes:
    stored = [load.stored_bytes for load in loads]
    most = max((size for size in stored if size is not None), default=0.0)
    counts = Counter(load.broker for load in loads)
    traffic = [load.bytes_per_s / counts[load.broker] for load in loads if load.known]
    mean_traffic = sum(traffic) / len(traffic) if traffic else 0.0
    floor = FLOOR_BYTES + most * FLOOR_PART + mean_traffic * FLOOR_TRAFFIC_S
    return [None if size is None else most - size + floor for size in stored]


def _headroom(loads: Sequence[PartitionLoad]) -> Wishes:
    counts = Counter(load.broker for load in loads)
    wishes: Wishes = [
        _free(load) / counts[load.broker] if _has_capacity(load) else None for load in loads
    ]
    mean = _mean(wishes)
    return [
        wish if wish is None or load.busy >= LOAD_BUSY_MIN else max(wish, mean)
        for wish, load in zip(wishes, loads, strict=True)
    ]


def _has_capacity(load: PartitionLoad) -> bool:
    return load.known and load.capacity_bytes_per_s > 0


def _free(load: PartitionLoad) -> float:
    capacity = load.capacity_bytes_per_s
    return max(capacity - load.bytes_per_s, capacity * FREE_MIN)


def _least_loaded(loads: Sequence[PartitionLoad]) -> Wishes:
    counts = Counter(load.broker for load in loads)
    return [_idle(load) / counts[load.broker] if load.known else None for load in loads]


def _idle(load: PartitionLoad) -> float:
    wait_ms = load.flush_ms * (1 + load.queue_depth)
    return (1 + FREE_MIN - min(1.0, load.busy)) / (1 + wait_ms / WAIT_MS)


_WISHES: Final[dict[Sense, Callable[[Sequence[PartitionLoad]], Wishes]]] = {
    Sense.STORED: _least_stored,
    Sense.HEADROOM: _headroom,
    Sense.LOAD: _least_loaded,
}


# Shares ---------------------------------------------------------------------------------------
def _shares(wishes: Wishes, loads: Sequence[PartitionLoad]) -> list[float]:
    """Return the bounded shares, scaled to a sum of 1."""
    mean = _mean(wishes)
    if mean > 0:
        shares = [1.0 if wish is None else max(wish / mean, SHARE_MIN) for wish in wishes]
    else:
        shares = [1.0] * len(wishes)
    disks = [load.disk_used_ratio or 0.0 if load.known else 0.0 for load in loads]
    if min(disks) < DISK_FULL:
        shares = [_of_disk(share, disk) for share, disk in zip(shares, disks, strict=True)]
    return _scaled(shares)


def _mean(wishes: Wishes) -> float:
    """Return the mean of the known wishes, 0 if none is known."""
    known = [wish for wish in wishes if wish is not None]
    return sum(known) / len(known) if known else 0.0


def _of_disk(share: float, disk: float) -> float:
    if disk >= DISK_FULL:
        return 0.0
    return SHARE_DISK_HIGH if disk >= DISK_HIGH else share


def _scaled(numbers: Sequence[float]) -> list[float]:
    total = math.fsum(numbers)
    return [number / total for number in numbers]


# Steps ----------------------------------------------------------------------------------------
def _gain(sense: Sense, loads: Sequence[PartitionLoad]) -> float:
    """Return which part of the way a weight moves; see the module's text."""
    brokers = {load.broker: load for load in loads if load.known}.values()
    if sense is Sense.HEADROOM:
        rated = [load for load in brokers if _has_capacity(load)]
        capacity = sum(load.capacity_bytes_per_s for load in rated)
        free = 1 - sum(load.bytes_per_s for load in rated) / capacity if rated else 1.0
    elif sense is Sense.LOAD:
        free = 1 - sum(min(1.0, load.busy) for load in brokers) / len(brokers) if brokers else 1.0
    else:
        return 1.0
    return max(GAIN_MIN, free / 2)


def _base(shares: Sequence[float], previous: Sequence[float]) -> list[float]:
    """Return the weights to step from: those before, but none on a full disk, with a sum of 1."""
    count = len(shares)
    even = math.fsum(previous) / len(previous) if previous else 1.0
    least = even * SHARE_DISK_HIGH / 2  # for one that was on a full disk
    known = [*previous[:count], *[even] * (count - len(previous))]
    base = [
        max(weight, least) if share else 0.0 for weight, share in zip(known, shares, strict=True)
    ]
    return base if base == previous else _scaled(base)


def _step(shares: Sequence[float], base: Sequence[float], gain: float) -> list[float]:
    """Return the weights after one step from ``base`` towards ``shares``; both have the sum 1."""
    wanted = [
        weight if abs(share - weight) <= DEAD_BAND * weight else weight + gain * (share - weight)
        for share, weight in zip(shares, base, strict=True)
    ]
    if wanted == list(base):
        return wanted
    return _fit(
        wanted, [weight / STEP_MAX for weight in base], [weight * STEP_MAX for weight in base]
    )


def _fit(wanted: Sequence[float], least: Sequence[float], most: Sequence[float]) -> list[float]:
    """Return ``wanted`` times one factor, each between its bounds, with the sum 1.

    The sum of ``least`` must be at most 1, that of ``most`` at least 1. As for the flexible lengths
    of CSS (section 9.7 of css-flexbox-1): scale, fix those beyond the bound that is passed by more
    in sum, scale the others again.
    """
    fixed: dict[int, float] = {}
    while True:
        free = [index for index in range(len(wanted)) if index not in fixed]
        left, total = 1 - math.fsum(fixed.values()), math.fsum(wanted[index] for index in free)
        scaled = {index: wanted[index] * left / total if total else 0.0 for index in free}
        low = {index: least[index] for index in free if scaled[index] < least[index]}
        high = {index: most[index] for index in free if scaled[index] > most[index]}
        if not low and not high:
            found = {**scaled, **fixed}
            return [found[index] for index in range(len(wanted))]
        lacking = math.fsum(least[index] - scaled[index] for index in low)
        beyond = math.fsum(scaled[index] - most[index] for index in high)
        fixed.update(low if lacking >= beyond else high)
