"""What retention deletes of a log, and what keeps the rest; rule by rule."""

from collections.abc import Sequence

import pytest

from vq.store.log.archive_age import due
from vq.store.log.retention import Cut, Kept, Limits, OpenBlock, decide, must_roll, relieve

HOUR_MS = 3_600_000
BLOCKS = [Kept(0, 100, HOUR_MS), Kept(100, 200, 2 * HOUR_MS), Kept(200, 300, 3 * HOUR_MS)]
NOW_MS = 11 * HOUR_MS // 2


def cut(limits, *, blocks=BLOCKS, now_ms=NOW_MS, committed=330, needed=None, size_bytes=330):
    return decide(
        blocks,
        limits,
        start=blocks[0].start if blocks else 0,
        size_bytes=size_bytes,
        now_ms=now_ms,
        committed=committed,
        needed=needed,
    )


def test_the_example_of_the_module() -> None:
    limits = Limits(age_ms=3 * HOUR_MS)
    assert cut(limits) == Cut(0, 200, 200)
    assert cut(limits, needed={"g": 150}) == Cut(0, 100, 200, "g")


@pytest.mark.parametrize(
    ("limits", "offset"),
    [
        (Limits(), 0),
        (Limits(age_ms=9 * HOUR_MS // 2), 100),  # of exactly this age
        (Limits(age_ms=9 * HOUR_MS // 2 + 1), 0),
        (Limits(age_ms=0), 300),
        (Limits(size_bytes=331), 0),
        (Limits(size_bytes=231), 0),
        (Limits(size_bytes=230), 100),
        (Limits(size_bytes=0), 300),
        (Limits(age_ms=4 * HOUR_MS, size_bytes=130), 200),
        (Limits(age_ms=3 * HOUR_MS, size_bytes=1_000), 200),
    ],
)
def test_what_is_too_old_or_too_much_goes(limits: Limits, offset: int) -> None:
    assert cut(limits) == Cut(0, offset, offset)


def test_nothing_goes_that_is_not_committed() -> None:
    """Whole blocks only, so the one that is committed in part stays."""
    assert cut(Limits(age_ms=0), committed=299) == Cut(0, 200, 200)


def test_who_needs_the_most_is_named() -> None:
    assert cut(Limits(age_ms=0), needed={"b": 100, "a": 100, "c": 250}) == Cut(0, 100, 300, "a")
    assert cut(Limits(age_ms=0), needed={"a": 300}) == Cut(0, 300, 300)
    assert cut(Limits(age_ms=0), needed={"a": 0}) == Cut(0, 0, 300, "a")


def test_a_block_without_a_time_is_as_old_as_the_next_one() -> None:
    blocks = [BLOCKS[0]._replace(last_ms=None), *BLOCKS[1:]]
    assert cut(Limits(age_ms=4 * HOUR_MS), blocks=blocks) == Cut(0, 0, 0)
    assert cut(Limits(age_ms=3 * HOUR_MS), blocks=blocks) == Cut(0, 200, 200)
    unknown = [block._replace(last_ms=None) for block in BLOCKS]
    assert cut(Limits(age_ms=0), blocks=unknown) == Cut(0, 0, 0)


def test_a_clock_that_was_set_back_deletes_nothing_early() -> None:
    """The batches have times in the future then."""
    assert cut(Limits(age_ms=0), now_ms=0) == Cut(0, 0, 0)


def test_a_range_before_a_gap_goes_as_a_whole() -> None:
    """Another broker group holds what lies between."""
    blocks = [BLOCKS[0], Kept(500, 600, 2 * HOUR_MS)]
    limits = Limits(age_ms=4 * HOUR_MS)
    assert cut(limits, blocks=blocks, committed=600) == Cut(0, 100, 100)
    assert cut(Limits(size_bytes=100), blocks=blocks, committed=600, size_bytes=200).offset == 100


@pytest.mark.parametrize(
    ("limits", "first_ms", "rolls"),
    [
        (Limits(), 0, False),
        (Limits(age_ms=HOUR_MS), NOW_MS - HOUR_MS, True),
        (Limits(age_ms=HOUR_MS), NOW_MS - HOUR_MS + 1, False),
        (Limits(age_ms=HOUR_MS), None, False),
        (Limits(size_bytes=30), None, True),
        (Limits(size_bytes=31), None, False),
    ],
)
def test_an_open_block_ends_when_it_could_go(limits, first_ms, rolls) -> None:
    assert must_roll(OpenBlock(300, 330, first_ms), limits, now_ms=NOW_MS) is rolls
    assert not must_roll(OpenBlock(300, 300, first_ms), limits, now_ms=NOW_MS)


# Early ------------------------------------------------------------------------------------------
def test_the_example_of_relieve() -> None:
    spare = {
        "p": [Kept(0, 50, HOUR_MS), Kept(50, 100, 3 * HOUR_MS)],
        "q": [Kept(0, 80, 2 * HOUR_MS)],
    }
    assert relieve(spare, 60) == {"p": 50, "q": 80}


@pytest.mark.parametrize(
    ("excess", "ends"),
    [
        (0, {}),
        (1, {"a": 10}),
        (10, {"a": 10}),
        (11, {"a": 20}),
        (21, {"a": 30}),
        (99, {"a": 30, "b": 9}),
    ],
)
def test_no_more_goes_than_is_needed(excess: int, ends: dict[str, int]) -> None:
    """A block without a time is as old as the next one."""
    spare = {"a": [Kept(0, 10, 1), Kept(10, 20, None), Kept(20, 30, 2)], "b": [Kept(0, 9, 2)]}
    assert relieve(spare, excess) == ends


@pytest.mark.parametrize(
    ("excess", "ends"),
    [(1, {"b": 9}), (9, {"b": 9}), (10, {"a": 30, "b": 9}), (99, {"a": 30, "b": 9})],
)
def test_what_frees_nothing_goes_only_in_front_of_what_frees_something(
    excess: int, ends: dict[str, int]
) -> None:
    """Archives elsewhere; those beside the log free what they take, not what they hold."""
    a = [Kept(0, 10, 1, 0), Kept(10, 20, 2, 0), Kept(20, 30, 4, 5), Kept(30, 40, 5, 0)]
    assert relieve({"a": a, "b": [Kept(0, 9, 3)], "c": [Kept(0, 50, 1, 0)]}, excess) == ends


def test_what_goes_early_waits_for_who_needs_it() -> None:
    assert cut(Limits(), needed=None) == Cut(0, 0, 0)
    found = decide(
        BLOCKS,
        Limits(),
        start=0,
        size_bytes=330,
        now_ms=NOW_MS,
        committed=330,
        needed={"g": 150},
        early=200,
    )
    assert found == Cut(0, 100, 200, "g")


def test_what_frees_nothing_does_not_go_early_in_vain() -> None:
    """An archive that lies elsewhere, or in a small zip, makes less room than its block did."""
    elsewhere = [Kept(0, 100, 1, 0), Kept(100, 200, 2, 0)]
    assert relieve({"p": elsewhere, "q": [Kept(0, 50, 3)]}, 40) == {"q": 50}
    assert relieve({"p": elsewhere}, 40) == {}
    assert relieve({"p": [*elsewhere, Kept(200, 300, 3)]}, 40) == {"p": 300}
    zips = [Kept(0, 100, 1, 20), Kept(100, 200, 2, 20), Kept(200, 300, 3, 20)]
    assert relieve({"p": zips}, 40) == {"p": 200}


def test_ten_thousands_of_blocks_are_decided_at_once() -> None:
    """The event loop does it: the work must grow with the blocks, not with their square."""

    class Counted(Sequence[Kept]):
        looks = 0

        def __getitem__(self, at):
            found = range(20_000)[at]
            Counted.looks += len(found) if isinstance(at, slice) else 1
            return (
                [Kept(n, n + 1, n) for n in found]
                if isinstance(at, slice)
                else Kept(at, at + 1, at)
            )

        def __len__(self):
            return 20_000

    assert decide(
        Counted(), Limits(age_ms=0), start=0, size_bytes=20_000, now_ms=20_000, committed=20_000
    ) == Cut(0, 20_000, 20_000)
    assert due(Counted(), after_hours=1, as_of_ms=10**9) == 20_000
    assert Counted.looks < 300_000
