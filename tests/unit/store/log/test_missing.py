"""What of a log is missing, as far as its checkpoint tells."""

import pytest

from vq.store.log.checkpoint import Checkpoint
from vq.store.log.missing import missing_ranges, missing_text

BLOCKS = {0: 100, 100: 100, 200: 60}
END = 260


def ranges(
    sizes: dict[int, int], *, gone: tuple[int, ...] = (), x: int = END, start: int = 0
) -> list[tuple[int, int]]:
    checkpoint = Checkpoint(topic_id="id", start_offset=start, offset=END)
    return missing_ranges(checkpoint, sizes, gone, x)


def without(start: int) -> dict[int, int]:
    return {at: size for at, size in BLOCKS.items() if at != start}


def test_nothing_is_missing_of_a_whole_log() -> None:
    """Also with space taken ahead, messages behind the checkpoint, and a start within a block."""
    assert ranges(BLOCKS) == []
    assert ranges({**BLOCKS, 200: 4_096, 4_296: 4_096}, x=5_000) == []
    assert ranges(without(0), start=100) == []
    assert ranges(BLOCKS, start=40) == []
    assert missing_text([]) == ""


@pytest.mark.parametrize(
    ("gone", "x", "missing"),
    [(0, END, (0, 100)), (100, 100, (100, 200)), (200, 200, (200, 260))],
    ids=["first", "middle", "last"],
)
def test_a_block_that_is_gone(gone: int, x: int, missing: tuple[int, int]) -> None:
    """What lies behind it is not served, but is not missing."""
    assert ranges(without(gone), gone=(gone,), x=x) == [missing]


@pytest.mark.parametrize("size", [30, 60])
def test_an_end_that_was_cut_or_zeroed(size: int) -> None:
    assert ranges({**BLOCKS, 200: size}, x=230) == [(230, 260)]


def test_a_block_in_the_middle_that_is_too_short() -> None:
    assert ranges({**BLOCKS, 100: 50}, x=130) == [(130, 200)]


def test_blocks_that_no_manifest_names() -> None:
    """The first version of checkpoints had none; all blocks may be gone, too."""
    assert ranges(without(0)) == [(0, 100)]
    assert ranges({}, x=0) == [(0, END)]
    assert ranges({300: 10}, x=300) == [(0, END)]


def test_two_places() -> None:
    """The first that is missing decides where the log ends; the other one is told, too."""
    sizes = {0: 100, 200: 30}
    assert ranges(sizes, gone=(100,), x=100) == [(100, 200), (230, 260)]


def test_without_a_checkpoint_nothing_is_known() -> None:
    assert missing_ranges(None, BLOCKS, (), 50) == []


def test_a_sentence_is_bounded() -> None:
    """A log may have thousands of blocks."""
    text = missing_text([(number * 10, number * 10 + 5) for number in range(1_000)])
    assert text.startswith(" Missing or damaged: offsets [0, 5), [10, 15), ")
    assert text.endswith(", [40, 45) and more.")
