"""Dead letters: kept as they were, told apart, sent again once, and given up."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.cases import case
from support.client import factory_of, started

from vq.admin import DeadLetter, LetterState
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.copies import MessageCopies
from vq.client.producer.spread.partitioner import key_partition
from vq.errors import (
    ConnectionCut,
    InvalidArgument,
    MessageTooLarge,
    NotMaster,
    OutcomeUnknown,
    SequenceStale,
    UnknownProducer,
    UnknownTopic,
    VqError,
)
from vq.model import Key, Message
from vq.operations.messages import dead_letters, resending
from vq.operations.messages.stored import read_range
from vq.operations.topics import deletion, topics
from vq.remoting.format import Command
from vq.reserved import DeliveryFailure, MessageOrigin, own_headers
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time

GROUP, NAME = "g", "_vq.dlq.g"
FAILURE = DeliveryFailure(3, 1_764_000_000_000, "ValueError: no id")
KEYS: tuple[Key | None, ...] = (None, "k", b"\0k", -5)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and a topic ``t`` with two partitions."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        yield cluster


async def messages_of(client: ClusterClient, topic: str, partitions: int = 2) -> list[Message]:
    found: list[Message] = []
    for number in range(partitions):
        found += (await read_range(client, topic, number, 0)).messages()
    return found


async def sent(cluster: MemoryCluster, count: int) -> list[Message]:
    """Send messages of all kinds to ``t``; return them as they are read."""
    async with factory_of(cluster, host="sender", seed=21) as factory:
        async with await factory.create_producer() as producer:
            for number in range(count):
                await producer.send(
                    Message(
                        "t",
                        b"%d" % number,
                        tag=("red", None)[number % 2],
                        key=KEYS[number % 4],
                        headers={"n": str(number)} if number % 3 else None,
                    )
                )
        return await messages_of(factory.admin.cluster, "t")


async def given_up(
    cluster: MemoryCluster, client: ClusterClient, count: int = 8, **failure: Any
) -> list[Message]:
    messages = await sent(cluster, count)
    copies = MessageCopies(client, GROUP)
    for each in messages:
        await copies.give_up(each, FAILURE._replace(**failure), timeout=5)
    return messages


async def letters(client: ClusterClient, **chosen: Any) -> list[DeadLetter]:
    return [each async for each in dead_letters.read_dead_letters(client, GROUP, **chosen)]


def states(found: list[DeadLetter]) -> dict[str, int]:
    return dict(Counter(str(each.state) for each in found))


def place(message: Message) -> MessageOrigin:
    return MessageOrigin(message.topic, message.partition, message.offset)


def origin_of(found: Message | DeadLetter) -> MessageOrigin | None:
    """Return where a copy comes from, as ``place`` returns it."""
    return None if found.origin is None else found.origin._replace(number=None)


def same(message: Message) -> tuple[Any, ...]:
    """Return what of a message every copy has."""
    own = own_headers(message.headers)
    return message.id, message.timestamp, message.content, message.tag, message.key, own


async def resent(client: ClusterClient) -> list[Message]:
    found = await messages_of(client, "t")
    return [each for each in found if "_vq.resent" in (each.headers or {})]


async def test_a_dead_letter_is_the_message_field_by_field(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    messages = {place(each): each for each in await given_up(cluster, client)}
    found = await letters(client)
    assert {origin_of(each) for each in found} == messages.keys()
    numbers = {
        each: at
        for part in (0, 1)
        for at, each in enumerate(sorted(each for each in messages if each.partition == part))
    }
    for letter in found:
        assert letter.origin is not None
        message = messages[letter.origin._replace(number=None)]
        assert letter.origin.number == numbers[place(message)]
        assert same(letter.message) == same(message)
        assert letter.message.partition == message.partition
        assert (letter.failure, letter.state, letter.settled) == (FAILURE, LetterState.OPEN, None)
        assert letter.message.append_time_ms is not None
    assert [(each.group, each.topic) for each in await dead_letters.list_dead_letters(client)] == [
        (GROUP, NAME)
    ]


@pytest.mark.parametrize("kind", ["zlib", "zstd", "lz4"])
async def test_a_copy_is_compressed_if_its_message_was(
    cluster: MemoryCluster, client: ClusterClient, kind: Any
) -> None:
    """So a topic of large texts needs no more space for its dead letters."""
    contents = [b"text " * 1_000, b"text"]
    async with (
        factory_of(cluster, host="sender", seed=21) as factory,
        await factory.create_producer(
            ProducerConfig(compression=kind, compression_threshold=1_000)
        ) as producer,
    ):
        for each in contents:
            await producer.send(Message("t", each, key="k"))
    copies = MessageCopies(client, GROUP)
    for message in await messages_of(client, "t"):
        await copies.give_up(message, FAILURE, timeout=5)
        await copies.retry_later(message, FAILURE, redelivery=1, delay_s=5.0, timeout=5)
    await asyncio.sleep(10)
    for topic in (NAME, f"_vq.retry.{GROUP}"):
        found = await messages_of(client, topic)
        assert sorted(each.content for each in found) == sorted(contents)
        large = max(found, key=lambda each: len(each.content))
        assert large.next_offset - large.offset < 500


async def test_copies_that_wait_for_each_other_go_together(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """One batch for each partition, and a refusal of one is that of nobody else."""
    messages = await of_one_partition(cluster)
    copies = MessageCopies(client, GROUP)
    await copies.give_up(messages[0], FAILURE, timeout=5)
    plain, puts = client.request, 0

    async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
        nonlocal puts
        puts += command == Command.PUT
        return await plain(address, command, *rest, **named)

    client.request = request  # type: ignore[method-assign]
    many = [messages[1]._replace(offset=at, id=at) for at in range(1_000, 1_100)]
    await asyncio.gather(*(copies.give_up(each, FAILURE, timeout=5) for each in many))
    assert 1 <= puts <= 2, "the first one waits for nobody"
    await topics.alter_topic(client, NAME, max_message_bytes=5)
    await client.refreshed(NAME)
    await asyncio.sleep(60)  # until the broker has heard of it
    small, large = messages[1], messages[2]._replace(content=b"too large")
    results = await asyncio.gather(
        *(copies.give_up(each, FAILURE, timeout=5) for each in (many[0], large, small)),
        return_exceptions=True,
    )
    assert [type(each) for each in results] == [type(None), MessageTooLarge, type(None)]
    found = [each.offset for each in map(origin_of, await messages_of(client, NAME)) if each]
    of_many = [each.offset for each in many]
    assert found == [messages[0].offset, *of_many, many[0].offset, small.offset]


async def test_the_first_origin_is_kept_by_a_copy_of_a_copy(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    (message, *_) = await given_up(cluster, client, 1)
    (letter,) = await letters(client)
    await MessageCopies(client, "other").give_up(letter.message, FAILURE, timeout=5)
    found = [each async for each in dead_letters.read_dead_letters(client, "other")]
    assert [origin_of(each) for each in found] == [place(message)]


async def test_what_was_not_used_has_made_nothing(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await sent(cluster, 1)
    MessageCopies(client, GROUP)
    assert [each.name for each in await topics.list_topics(client, reserved=True)] == ["t"]
    with pytest.raises(UnknownTopic, match=r"group 'g' has no dead letters.*_vq\.dlq\.g"):
        await letters(client)
    assert await dead_letters.list_dead_letters(client) == []


async def test_letters_are_chosen_by_reason_time_and_id(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    early, other = await given_up(cluster, client, 2, reason="TimeoutError: db")
    await asyncio.sleep(60)
    await MessageCopies(client, GROUP).give_up(early, FAILURE, timeout=5)
    times = sorted(each.message.append_time_ms or 0 for each in await letters(client))
    assert times[2] - times[1] > 50_000
    for chosen, count in (
        ({"reason": "timeouterror"}, 2),
        ({"reason": "VALUE"}, 1),
        ({"reason": "Value", "until_ms": times[2]}, 0),
        ({"since_ms": times[0]}, 3),
        ({"since_ms": times[2]}, 1),
        ({"since_ms": times[2] + 1}, 0),
        ({"until_ms": times[2]}, 2),
        ({"since_ms": times[0], "until_ms": times[0]}, 0),
        ({"ids": [early.id]}, 2),
        ({"ids": {other.id}, "reason": "Value"}, 0),
        ({"ids": [early.id, other.id, 5]}, 3),
    ):
        with case(chosen):
            assert len(await letters(client, **chosen)) == count
    wrongs: tuple[dict[str, Any], ...] = (
        {"reason": 5},
        {"since_ms": "now"},
        {"until_ms": 1.5},
        {"ids": 7318},
        {"ids": "7318"},
        {"ids": ["7318"]},
    )
    for wrong in wrongs:
        with case(wrong), pytest.raises(InvalidArgument):
            await letters(client, **wrong)
    assert (await resending.resend_dead_letters(client, GROUP, ids=[other.id])).resent == 1
    assert await resending.delete_dead_letters(client, GROUP, ids=[other.id]) == 0
    assert await resending.delete_dead_letters(client, GROUP, ids=[early.id]) == 2


async def test_a_group_whose_letters_cannot_be_read_hides_no_other_one(
    cluster: MemoryCluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (message, *_) = await given_up(cluster, client, 1)
    await MessageCopies(client, "a").give_up(message, FAILURE, timeout=5)
    counted = dead_letters.counted

    async def count(cluster: ClusterClient, group: str) -> dead_letters.DeadLetters:
        if group == "a":
            raise NotMaster("no broker has the letters of a")
        return await counted(cluster, group)

    monkeypatch.setattr(dead_letters, "counted", count)
    found, failed = await dead_letters.look_at_dead_letters(client)
    assert [each.group for each in found] == [GROUP]
    assert [error.message for error in failed] == ["no broker has the letters of a"]
    with pytest.raises(NotMaster):
        await dead_letters.list_dead_letters(client)


async def test_letters_go_back_where_they_come_from_and_are_noted(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    before = await given_up(cluster, client)
    done = await resending.resend_dead_letters(client, GROUP, rate=1e6)
    assert (done.resent, done.finished, done.homeless) == (8, 0, 0)
    again = [
        each for each in await messages_of(client, "t") if "_vq.resent" in (each.headers or {})
    ]
    assert sorted(map(same, again), key=str) == sorted(map(same, before), key=str)
    assert Counter(each.partition for each in again) == Counter(e.partition for e in before)
    for each in again:
        assert set(each.headers or {}) - {"n"} == {"_vq.resent"}
    assert await letters(client) == []
    settled = await letters(client, settled=True)
    assert states(settled) == {"resent": 8}
    assert all(each.settled is not None and "@" in each.settled.by for each in settled)
    for _ in range(2):  # again: nothing is left to send
        done = await resending.resend_dead_letters(client, GROUP)
        assert (done.resent, done.finished) == (0, 0)
    assert len(await messages_of(client, "t")) == 16


async def test_letters_go_elsewhere_by_their_keys(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await cluster.create_topic("u", partitions=3)
    before = await given_up(cluster, client)
    done = await resending.resend_dead_letters(client, GROUP, to="u", rate=1e6)
    assert done.resent == 8
    found = await messages_of(client, "u", 3)
    assert sorted(map(same, found), key=str) == sorted(map(same, before), key=str)
    for key in KEYS[1:]:
        assert len({each.partition for each in found if each.key == key}) == 1
    with pytest.raises(UnknownTopic, match="'v'"):
        await resending.resend_dead_letters(client, GROUP, to="v")
    with pytest.raises(InvalidArgument, match="reserved"):
        await resending.resend_dead_letters(client, GROUP, to="_vq.dlq.other")
    for rate in (0, -1, True, 2e6, "1", float("nan")):
        with case(rate), pytest.raises(InvalidArgument, match="rate"):
            await resending.resend_dead_letters(client, GROUP, rate=rate)  # type: ignore[arg-type]


async def test_the_rate_is_kept(cluster: MemoryCluster, client: ClusterClient) -> None:
    await given_up(cluster, client, 20)
    begun = client.clock.monotonic()
    await resending.resend_dead_letters(client, GROUP, rate=2)
    assert client.clock.monotonic() - begun >= 9


async def test_large_headers_make_no_batch_that_nobody_takes(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """It would have been begun, so that no later call could send anything either."""
    key = next(key for key in map(str, range(99)) if key_partition(key, 2) == 0)
    large = Message("t", bytes(10_000), key=key, headers={"h": "x" * 32_500})

    async def refuse(_: Message) -> None:
        raise ValueError("no")

    async with factory_of(cluster, host="large", seed=22) as factory:
        async with await factory.create_producer() as producer:
            for _ in range(resending.BATCH_LETTERS):
                await producer.send(large)
        config = ConsumerConfig(group=GROUP, on_failure="dead-letter", max_attempts=1)
        async with await factory.create_consumer(config) as consumer:
            await consumer.subscribe("t", listener=refuse).start()

            async def are_given_up() -> bool:
                lag = (await factory.admin.describe_group(GROUP)).lag_messages
                return lag == 0

            await until_true(are_given_up, timeout_s=300)
    done = await resending.resend_dead_letters(client, GROUP, rate=1e6)
    assert done.resent == resending.BATCH_LETTERS


async def test_letters_without_a_way_home_are_left_and_counted(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await given_up(cluster, client)
    await topics.alter_topic(client, "t", writable=False)
    done = await resending.resend_dead_letters(client, GROUP)
    assert (done.resent, done.homeless) == (0, 8)
    await deletion.delete_topic(client, "t", now=True)
    assert (await resending.resend_dead_letters(client, GROUP)).homeless == 8
    assert states(await letters(client)) == {"open": 8}
    await cluster.create_topic("u", partitions=1)
    assert (await resending.resend_dead_letters(client, GROUP, to="u", rate=1e6)).resent == 8


async def test_deleted_letters_are_not_sent_and_still_shown_when_asked_for(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await given_up(cluster, client)
    assert await resending.delete_dead_letters(client, GROUP, reason="other") == 0
    assert await resending.delete_dead_letters(client, GROUP, reason="no id") == 8
    assert await resending.delete_dead_letters(client, GROUP) == 0
    assert (await resending.resend_dead_letters(client, GROUP)).resent == 0
    assert states(await letters(client, settled=True)) == {"deleted": 8}
    (summary,) = await dead_letters.list_dead_letters(client)
    assert (summary.letters[LetterState.DELETED], summary.oldest_ms) == (8, None)


# Interrupts -----------------------------------------------------------------------------------
def cut_at(
    client: ClusterClient, number: int, error: BaseException, *, stored: bool
) -> Callable[[], int]:
    """Have the PUT of a number fail, before it is sent or after it was; return the count so far."""
    count = 0
    plain = client.request

    async def request(address: Any, command: int, *rest: Any, **named: Any) -> Any:
        nonlocal count
        if command != Command.PUT:
            return await plain(address, command, *rest, **named)
        count += 1
        if count != number:
            return await plain(address, command, *rest, **named)
        if stored:
            await plain(address, command, *rest, **named)
        raise error

    client.request = request  # type: ignore[method-assign]
    return lambda: count


@pytest.mark.parametrize(
    "refusal", [MessageTooLarge("x"), UnknownProducer("x"), SequenceStale("x")]
)
async def test_a_batch_that_nobody_takes_any_more_holds_up_no_other_letter(
    cluster: MemoryCluster, client: ClusterClient, refusal: VqError
) -> None:
    """Too large by now, or its broker forgot the stamp: the call sends the rest, and says so."""
    before = await given_up(cluster, client, 8)
    for number, error in ((2, Killed()), (1, refusal)):
        async with started(cluster, host=f"h{number}", seed=100 + number) as mine:
            cut_at(mine, number, error, stored=False)
            with pytest.raises(type(error)):
                await resending.resend_dead_letters(mine, GROUP)
    found = states(await letters(client, settled=True))
    assert found["resending"] + found["resent"] == 8
    assert found["resent"] > 0
    await resending.resend_dead_letters(client, GROUP)
    await exactly_once(client, before)


async def exactly_once(client: ClusterClient, before: list[Message]) -> None:
    again = await resent(client)
    assert sorted(map(same, again), key=str) == sorted(map(same, before), key=str)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_resend_that_is_killed_at_any_step_and_repeated_doubles_nothing(
    cluster: MemoryCluster, client: ClusterClient, stored: bool
) -> None:
    """Each call dies one PUT later than the one before, until one gets to its end."""
    before = await given_up(cluster, client, 8)
    number = finished = 0
    while True:
        number += 1
        async with started(cluster, host=f"h{number}", seed=100 + number) as mine:
            cut_at(mine, 1 + number % 6, Killed(), stored=stored)
            try:
                done = await resending.resend_dead_letters(mine, GROUP, rate=4)
            except Killed:
                assert number < 50
                continue
        finished += done.finished
        break
    assert number > 2
    await exactly_once(client, before)
    assert states(await letters(client, settled=True)) == {"resent": 8}


@pytest.mark.parametrize("stored", [False, True])
async def test_a_resend_whose_answer_is_lost_is_answered_by_the_same_stamp(
    cluster: MemoryCluster, client: ClusterClient, stored: bool
) -> None:
    before = await given_up(cluster, client, 8)
    for number in range(1, 8):
        async with started(cluster, host=f"h{number}", seed=100 + number) as mine:
            count = cut_at(mine, number, ConnectionCut("cut"), stored=stored)
            await resending.resend_dead_letters(mine, GROUP, rate=1e6)
            if number == 1:
                assert count() == 7  # two partitions, three PUTs each, and the one that was cut
    await exactly_once(client, before)


async def test_two_who_resend_at_once_share_the_letters(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    before = await given_up(cluster, client, 40)
    async with (
        started(cluster, host="a", seed=31) as one,
        started(cluster, host="b", seed=32) as two,
        started(cluster, host="c", seed=33) as three,
    ):
        ended = await asyncio.gather(
            *(resending.resend_dead_letters(each, GROUP, rate=5) for each in (one, two, three))
        )
    await exactly_once(client, before)
    assert sum(each.resent for each in ended) == 40


async def test_a_batch_that_was_begun_for_a_topic_that_is_gone_is_open_again(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await given_up(cluster, client, 4)
    async with started(cluster, host="a", seed=31) as mine:
        cut_at(mine, 2, Killed(), stored=False)
        with pytest.raises(Killed):
            await resending.resend_dead_letters(mine, GROUP, rate=1e6)
    assert "resending" in states(await letters(client))
    await deletion.delete_topic(client, "t", now=True)
    await cluster.create_topic("t", partitions=2)
    done = await resending.resend_dead_letters(client, GROUP, rate=1e6)
    assert (done.resent, done.finished) == (4, 0)
    assert len(await messages_of(client, "t")) == 4


# Copies ---------------------------------------------------------------------------------------
async def of_one_partition(cluster: MemoryCluster) -> list[Message]:
    """Return four messages of a partition."""
    found = [each for each in await sent(cluster, 16) if each.key == -5]
    assert len(found) == 4
    return found


@pytest.mark.parametrize("stored", [False, True])
async def test_a_copy_of_unknown_outcome_is_stored_once_when_it_is_made_again(
    cluster: MemoryCluster, client: ClusterClient, stored: bool
) -> None:
    """Whether the caller comes back with the same message, or with another one of the partition."""
    messages = await of_one_partition(cluster)
    for comes_back in (True, False):
        async with started(cluster, host=f"m{comes_back}", seed=40 + comes_back) as member:
            copies = MessageCopies(member, f"{GROUP}{comes_back}")
            await copies.give_up(messages[0], FAILURE, timeout=5)
            cut_at(member, 1, Killed(), stored=stored)
            with pytest.raises(Killed):  # as when its member is cancelled here
                await copies.give_up(messages[1], FAILURE, timeout=5)
            for each in messages[1 if comes_back else 2 :]:
                await copies.give_up(each, FAILURE, timeout=5)
        name = f"_vq.dlq.{GROUP}{comes_back}"
        found = [origin_of(each) for each in await messages_of(client, name)]
        assert found == [place(each) for each in messages]


async def test_a_copy_that_the_broker_does_not_answer_in_time_is_unknown_and_then_once(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    messages = await of_one_partition(cluster)
    copies = MessageCopies(client, GROUP)
    await copies.give_up(messages[0], FAILURE, timeout=5)
    plain = client.request

    async def deaf(address: Any, command: int, *rest: Any, **named: Any) -> Any:
        if command == Command.PUT:
            await plain(address, command, *rest, **named)
            raise ConnectionCut("cut")
        return await plain(address, command, *rest, **named)

    client.request = deaf  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await copies.give_up(messages[1], FAILURE, timeout=1)
    client.request = plain  # type: ignore[method-assign]
    await copies.give_up(messages[1], FAILURE, timeout=1)
    assert [origin_of(each) for each in await messages_of(client, NAME)] == [
        place(each) for each in messages[:2]
    ]


async def test_a_copy_that_is_refused_keeps_nothing_from_the_next_one(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    messages = await of_one_partition(cluster)
    copies = MessageCopies(client, GROUP)
    await copies.give_up(messages[0], FAILURE, timeout=5)
    await topics.alter_topic(client, NAME, max_message_bytes=1)
    await client.refreshed(NAME)

    large = messages[1]._replace(content=b"xx")
    await asyncio.sleep(60)  # until the broker has heard of it
    with pytest.raises(VqError, match="takes at most 1"):
        await copies.give_up(large, FAILURE, timeout=5)
    await copies.give_up(messages[2]._replace(content=b"x"), FAILURE, timeout=5)
    origins = [origin_of(each) for each in await messages_of(client, NAME)]
    assert origins[0] == place(messages[0])
    assert origins[-1] == place(messages[2])


async def test_a_topic_that_was_deleted_for_good_is_made_again(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    messages = await sent(cluster, 4)
    copies = MessageCopies(client, GROUP)
    await copies.give_up(messages[0], FAILURE, timeout=5)
    await deletion.delete_topic(client, NAME, now=True)
    await client.refreshed(NAME)
    await copies.give_up(messages[1], FAILURE, timeout=5)
    assert [origin_of(each) for each in await letters(client)] == [place(messages[1])]
