"""Whatever the blocks, limits, needs and clocks are, retention deletes no more than it may."""

from hypothesis import given
from hypothesis import strategies as st

from vq.store.log.retention import Kept, Limits, decide, relieve

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS

times = st.integers(0, NOW_MS + 10 * HOUR_MS)
limits = st.builds(
    Limits,
    age_ms=st.none() | st.integers(0, 900 * HOUR_MS),
    size_bytes=st.none() | st.integers(0, 2_000),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Kept], int]:
    """Closed blocks, some with unknown times and some behind a gap, and the size of all blocks."""
    offset, time_ms, blocks = draw(st.integers(0, 50)), 0, []
    for _ in range(draw(st.integers(0, 8))):
        offset += draw(st.sampled_from([0, 0, 0, 70]))
        size = draw(st.integers(1, 300))
        time_ms = max(time_ms, draw(times))
        blocks.append(Kept(offset, offset + size, draw(st.sampled_from([None, time_ms, time_ms]))))
        offset += size
    return blocks, sum(each.end - each.start for each in blocks) + draw(st.integers(0, 300))


def start_of(blocks: list[Kept]) -> int:
    return blocks[0].start if blocks else 0


def decided(log, limits, *, now_ms=NOW_MS, committed=1 << 60, needed=None):
    blocks, size = log
    return decide(
        blocks,
        limits,
        start=start_of(blocks),
        size_bytes=size,
        now_ms=now_ms,
        committed=committed,
        needed=needed,
    )


@given(logs(), limits, st.integers(0, 3_000), st.dictionaries(st.text(), st.integers(0, 3_000)))
def test_whole_blocks_go_that_are_committed_and_nobody_needs(log, limits, committed, needed):
    cut = decided(log, limits, committed=committed, needed=needed)
    start = start_of(log[0])
    assert cut.offset in {start, *(block.end for block in log[0])}
    assert start <= cut.offset <= cut.wanted
    for bound in (committed, *needed.values()):
        assert cut.offset <= max(start, bound)
    if cut.offset < cut.wanted:
        assert needed[cut.holder] == min(needed.values())
    else:
        assert cut.holder == ""


@given(logs(), limits)
def test_a_block_goes_only_for_its_age_or_when_enough_is_left(log, limits):
    blocks, size = log
    cut = decided(log, limits)
    for block in blocks:
        if block.end > cut.offset:
            break
        size -= block.end - block.start
        too_much = limits.size_bytes is not None and size >= limits.size_bytes
        # A block with an unknown time is older than one behind it.
        known = [each.last_ms for each in blocks if each.end >= block.end and each.last_ms]
        aged = limits.age_ms is not None and known and min(known) <= NOW_MS - limits.age_ms
        larger = any(  # or blocks behind it were too much, and those before them go first
            limits.size_bytes is not None and block.end <= each.end <= cut.offset for each in blocks
        )
        assert too_much or aged or larger


@given(logs(), limits, st.integers(0, NOW_MS))
def test_a_clock_that_is_set_back_deletes_no_more(log, limits, earlier_ms):
    assert decided(log, limits, now_ms=earlier_ms).offset <= decided(log, limits).offset


@given(logs(), st.integers(0, 900 * HOUR_MS), st.integers(0, 7), st.integers(0, NOW_MS))
def test_a_time_that_falls_makes_no_later_block_older(log, age_ms, at, time_ms):
    """A damaged index may tell one."""
    blocks, size = log
    blocks = [block for block in blocks if block.last_ms is not None]
    if at < len(blocks):
        fallen = [*blocks]
        fallen[at] = blocks[at]._replace(last_ms=min(blocks[at].last_ms, time_ms))
        before = decided((blocks, size), Limits(age_ms))
        after = decided((fallen, size), Limits(age_ms))
        if at and blocks[at - 1].last_ms > NOW_MS - age_ms:
            assert after.offset == before.offset


@given(logs(), limits)
def test_without_limits_everything_stays(log, limits):
    assert decided(log, Limits()).wanted == start_of(log[0])


# Early ------------------------------------------------------------------------------------------
several = st.dictionaries(st.sampled_from("pqr"), logs().map(lambda log: log[0]))


def gone(spare: dict[str, list[Kept]], ends: dict[str, int]) -> list[tuple[str, Kept]]:
    return [
        (name, block)
        for name, blocks in spare.items()
        for block in blocks
        if block.end <= ends.get(name, 0)
    ]


@given(several, st.integers(-5, 3_000))
def test_as_much_goes_early_as_is_needed_and_no_block_more(spare, excess):
    ends = relieve(spare, excess)
    for name, end in ends.items():
        assert end in {block.end for block in spare[name]}
    sizes = [block.end - block.start for _, block in gone(spare, ends)]
    everything = sum(block.end - block.start for blocks in spare.values() for block in blocks)
    assert sum(sizes) >= min(excess, everything)
    if ends:
        # The last blocks of each partition are the only ones that could be spared.
        last = [block for name, block in gone(spare, ends) if block.end == ends[name]]
        assert excess > 0
        assert any(sum(sizes) - (block.end - block.start) < excess for block in last)


@given(several, st.integers(0, 3_000))
def test_no_older_block_stays_when_a_younger_one_goes_early(spare, excess):
    ends = relieve(spare, excess)
    stay = [
        block.last_ms
        for name, blocks in spare.items()
        for block in blocks
        if block.end > ends.get(name, 0) and block.last_ms is not None
    ]
    for _, block in gone(spare, ends):
        if block.last_ms is not None and stay:
            assert block.last_ms <= min(stay)
