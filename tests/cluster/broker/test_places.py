"""Whether an offset is still the place it was, asked with OFFSETS."""

import pytest
from support.broker import Client, message

from vq.remoting.format import Place
from vq.store.records.format import CONTROL_BYTES

pytestmark = pytest.mark.virtual_time

SIZE = CONTROL_BYTES + 20 + 2  # of a batch with one message of two bytes


async def _place(
    client: Client, offset: int, message_id: int = 0, *tags: str, epoch: int = 0
) -> tuple[int, str]:
    answer = await client.offsets(
        "t",
        0,
        place=True,
        place_offset=offset,
        place_message_id=message_id,
        place_tags=tags,
        place_epoch=epoch,
    )
    return answer.place, answer.place_reason


async def _fill(served) -> None:
    for number in range(3):
        await served.client.put("t", 0, [message(b"m%d" % number, 10 + number, "ab"[number % 2])])


SIZE_TAGGED = SIZE + 5


async def test_the_message_before_an_offset_tells_its_place(served):
    """The right one, another one, none that is known."""
    await _fill(served)
    end = 3 * SIZE_TAGGED
    assert await _place(served.client, end, 12) == (Place.SAME, "")
    assert await _place(served.client, 2 * SIZE_TAGGED + CONTROL_BYTES, 11) == (Place.SAME, "")
    place, reason = await _place(served.client, end, 11)
    assert place == Place.OTHER
    assert reason == f"message 12 lies before offset {end} of t-0, not 11"
    assert await _place(served.client, end) == (Place.UNKNOWN, "")
    assert await _place(served.client, 0, 9) == (Place.UNKNOWN, "")


async def test_another_epoch_is_another_place_also_of_the_same_message(served):
    """A producer sends the same message again to a new master, which lacks what was before it."""
    await _fill(served)
    end, epoch = 3 * SIZE_TAGGED, served.node.epoch
    assert await _place(served.client, end, 12, epoch=epoch) == (Place.SAME, "")
    assert (await _place(served.client, end, 11, epoch=epoch))[0] == Place.OTHER
    for message_id in (12, 0):
        place, reason = await _place(served.client, end, message_id, epoch=epoch + 1)
        assert place == Place.OTHER
        assert f"to {end} is gone: it was written in epoch {epoch + 1}" in reason
    place, reason = await _place(served.client, end + 90, epoch=epoch)
    assert (place, f"from offset {end} to {end + 90} is gone" in reason) == (Place.OTHER, True)
    assert await _place(served.client, 0, epoch=epoch + 1) == (Place.UNKNOWN, "")


async def test_only_messages_of_the_filter_count(served):
    """A group with a filter commits the id of the last one it was given."""
    await _fill(served)
    end = 3 * SIZE_TAGGED
    assert await _place(served.client, end, 11, "b") == (Place.SAME, "")
    assert (await _place(served.client, end, 11, "a"))[0] == Place.OTHER
    assert await _place(served.client, end, 11, "c") == (Place.UNKNOWN, "")


@pytest.mark.parametrize("message_id", [0, 12])
async def test_an_offset_that_the_log_does_not_have_is_another_place(served, message_id):
    """Beyond its end, or inside a record; also of a partition nobody ever wrote to."""
    place, reason = await _place(served.client, 88, message_id)
    assert (place, "which is 0" in reason) == (Place.OTHER, True)
    await _fill(served)
    place, reason = await _place(served.client, 3 * SIZE_TAGGED + 1, message_id)
    assert (place, f"which is {3 * SIZE_TAGGED}" in reason) == (Place.OTHER, True)
    place, reason = await _place(served.client, SIZE_TAGGED + 7, message_id)
    assert (place, "inside a record" in reason) == (Place.OTHER, True)


async def test_damage_says_nothing_about_a_place(served):
    """Neither that it is gone nor that it is another."""
    await _fill(served)
    log = served.node.parts.partitions.channels["t", 0].log
    file = log.reader.block_at(0).open()
    file.pwrite([b"\xff" * 30], SIZE_TAGGED)
    assert await _place(served.client, 2 * SIZE_TAGGED, 11) == (Place.UNKNOWN, "")
