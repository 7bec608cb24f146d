"""The routes under ``/v1``: what each does, what it takes and answers, and the right it needs.

``GatewayRoutes.rows`` has a row for each. A right on a topic in the path is checked before the
row's function runs; one on what stands in the body is checked there, by ``Caller.check``.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import AwareDatetime, BaseModel
from starlette.requests import Request
from starlette.responses import Response

from vq import limits
from vq.aio.consumer import MessageConsumer
from vq.aio.factory import MessageFactory
from vq.aio.hosted import SharedDelivery, cluster_of, settle_shared
from vq.aio.producer import MessageProducer
from vq.client.config import ConsumerConfig, ProducerConfig, StartPosition
from vq.client.consumer.shared.handles import SettleKind
from vq.client.consumer.shared.settler import lease_lost
from vq.coordination.topics.topics import list_topics
from vq.coordination.tree.reading import gather_all, read_summary
from vq.coordination.tree.values.group_terms import WorkingMode
from vq.coordination.tree.values.topics import READY
from vq.errors import BatchFailed, InvalidState, OutcomeUnknown, VqError
from vq.gateway import forms
from vq.gateway.bodies import JSON, Bodies, check_json
from vq.gateway.config import (
    ANSWER_BYTES_MAX,
    MESSAGES_MAX,
    SEND_S_MAX,
    WAIT_S_MAX,
    GatewayConfig,
)
from vq.gateway.counts import GatewayCounts
from vq.gateway.forms import ContentForm, FormT
from vq.gateway.members import HostedMember, HostedMembers
from vq.gateway.problems import (
    BodyRefused,
    ConsumerGone,
    as_json,
    problem_headers,
    problem_of,
)
from vq.gateway.shared_members import (
    SharedAsk,
    SharedMembership,
    SharedSeats,
    handle_text,
    handles_of,
    named_seat,
)
from vq.gateway.streams import EventStream, until_gone
from vq.gateway.tokens import Caller
from vq.gateway.unread import Unread
from vq.message_filter import Wanting, Where
from vq.model import Message, SendResult, TopicPartition
from vq.reserved import is_reserved
from vq.security.rules import Resource, Right
from vq.shown import shown
from vq.tasks import begin_task

#: Where the caller of a request is in its scope.
CALLER: Final = "vq.caller"
#: And what tells who that is now: a token may lose rights while a stream lasts.
AUTHENTICATE: Final = "vq.authenticate"
_HEADERS: Final = {
    "Content-Type": JSON,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}
#: The routes that settle messages of shared groups.
_VERBS: Final = {
    SettleKind.ACK: "ack",
    SettleKind.RELEASE: "nack",
    SettleKind.REJECT: "reject",
    SettleKind.EXTEND: "extend",
}
#: Request headers of a raw message.
_KEY, _TAG, _DELAY, _HEADER = "vq-key", "vq-tag", "vq-delay", "vq-header-"
_DETAIL_CHARS_MAX: Final = 2_000
#: Topics of one page.
_TOPICS_MAX: Final = 1_000
#: Memory of messages that are being sent; bodies have a bound that is reached first.
_BUFFER_BYTES: Final = 256 * limits.MIB

TopicPath = Annotated[str, Path(pattern=forms.NAME, max_length=limits.NAME_CHARS_MAX)]
GroupPath = Annotated[str, Path(pattern=forms.NAME, max_length=limits.NAME_CHARS_MAX)]
PartitionPath = Annotated[int, Path(ge=0, lt=limits.PARTITIONS_PER_TOPIC_MAX)]
ConsumerPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
SendTimeout = Annotated[
    float,
    Query(ge=0.1, le=SEND_S_MAX, allow_inf_nan=False, description="Seconds to wait for brokers."),
]
Most = Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="Messages at most.")]
Wait = Annotated[
    float,
    Query(ge=0, le=WAIT_S_MAX, allow_inf_nan=False, description="Seconds to wait for a first one."),
]
Show = Annotated[ContentForm, Query(description="How contents are shown.")]


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One route.

    Attributes:
        method, path: As they say.
        function: What it does.
        right, resource: What the token needs; of the topic in the path if there is one.
        status: Of an answer that is no problem.
        answer: The model of that answer; a text: its type, if it is no JSON; None: it has no body.
        problems: The statuses of problems, beside those that every route has.
        body: The model of the body; a text: what a raw one is; None: it has none.
        problem: The model of its problems.
    """

    method: str
    path: str
    function: Callable[..., Awaitable[Response]]
    right: Right
    resource: Resource
    status: int
    answer: type[BaseModel] | str | None
    problems: Sequence[int] = ()
    body: type[BaseModel] | str | None = None
    problem: type[BaseModel] = forms.ProblemForm


class GatewayRoutes:
    """What the routes do.

    Args:
        config: The bounds.
        factory: An open factory.
        bodies: The bodies of requests.
        unread: Answers that peers have not taken.
        members: The consumers.
        counts: What is counted.
    """

    def __init__(
        self,
        config: GatewayConfig,
        factory: MessageFactory,
        *,
        bodies: Bodies,
        unread: Unread,
        members: HostedMembers,
        counts: GatewayCounts,
    ) -> None:
        self._config = config
        self._factory = factory
        self._bodies = bodies
        self._unread = unread
        self._members = members
        self._counts = counts
        self._seats = SharedSeats(factory)
        self._opening = asyncio.Lock()
        self._producer: MessageProducer | None = None
        self._reader: MessageConsumer | None = None

    def rows(self) -> list[RouteRow]:
        """Return all routes."""
        topic, group = Resource.TOPIC, Resource.GROUP
        read, write, describe = Right.READ, Right.WRITE, Right.DESCRIBE
        sends = (404, 408, 409, 413, 415, 502, 504)
        uses = (404, 409, 410)
        settles = (408, 409, 413, 415, 502, 504)
        consumer, of_group = "/v1/consumers/{consumer}", "/v1/groups/{group}"
        return [
            RouteRow(
                "POST", "/v1/topics/{topic}/messages", self.send, write, topic, 201,
                forms.SentForm, sends, forms.MessageForm,
            ),
            RouteRow(
                "POST", "/v1/topics/{topic}/messages/raw", self.send_raw, write, topic, 201,
                forms.SentForm, sends, "The content, as it is.",
            ),
            RouteRow(
                "POST", "/v1/messages", self.send_batch, write, topic, 200,
                forms.BatchSentForm, sends, forms.BatchForm, forms.BatchProblemForm,
            ),
            RouteRow("GET", "/v1/topics", self.topics, describe, topic, 200, forms.TopicsForm),
            RouteRow(
                "GET", "/v1/topics/{topic}", self.topic, describe, topic, 200,
                forms.TopicDetailForm, (404, 502, 504),
            ),
            RouteRow(
                "GET", "/v1/topics/{topic}/partitions/{partition}/messages", self.read, read,
                topic, 200, forms.ReadForm, (404, 409, 416, 502, 504),
            ),
            RouteRow(
                "POST", "/v1/consumers", self.create, read, group, 201,
                forms.HostedForm, (404, 408, 409, 413, 415, 502, 504), forms.ConsumerForm,
            ),
            RouteRow("GET", consumer, self.describe, read, group, 200, forms.HostedForm, uses),
            RouteRow("DELETE", consumer, self.delete, read, group, 204, None, uses),
            RouteRow("POST", f"{consumer}/heartbeat", self.heartbeat, read, group, 204, None, uses),
            RouteRow(
                "GET", f"{consumer}/messages", self.receive, read, group, 200,
                forms.GivenForm, (*uses, 502, 504),
            ),
            RouteRow(
                "GET", f"{consumer}/stream", self.stream, read, group, 200,
                "text/event-stream", (*uses, 502, 504),
            ),
            RouteRow(
                "POST", f"{consumer}/commits", self.commit, read, group, 200,
                forms.CommittedForm, (*uses, 408, 413, 415, 502, 504), forms.CommitForm,
                forms.CommitProblemForm,
            ),
            RouteRow(
                "POST", f"{of_group}/receive", self.receive_shared, read, group, 200,
                forms.DeliveriesForm, (404, *settles), forms.SharedReceiveForm,
            ),
            *(
                RouteRow(
                    "POST", f"{of_group}/{verb}", function, read, group, 200,
                    forms.SettledForm, settles, form, forms.SettleProblemForm,
                )
                for verb, function, form in (
                    ("ack", self.ack, forms.HandlesForm),
                    ("nack", self.nack, forms.NackForm),
                    ("reject", self.reject, forms.HandlesForm),
                    ("extend", self.extend, forms.ExtendForm),
                )
            ),
        ]  # fmt: skip

    async def close(self) -> None:
        """Send what was accepted, and close what the routes use."""
        async with self._opening:
            producer, self._producer = self._producer, None
            reader, self._reader = self._reader, None
        if producer is not None:
            await producer.close()
        if reader is not None:
            await reader.close()

    # Sending --------------------------------------------------------------------------------------
    async def send(
        self, request: Request, topic: TopicPath, timeout: SendTimeout = 10.0
    ) -> Response:
        """Send one message to a topic."""
        check_json(request)
        async with self._bodies.of(request) as body:
            return await self._sent(forms.read(forms.MessageForm, body).message(topic), timeout)

    async def send_raw(
        self, request: Request, topic: TopicPath, timeout: SendTimeout = 10.0
    ) -> Response:
        """Send one message whose content is the body, of any type.

        The headers VQ-Key, VQ-Tag and VQ-Delay (seconds) are its key, tag and delay, in UTF-8. A
        header VQ-Header-Name is its header `name`: names are in lower case.
        """
        async with self._bodies.of(request, limits.MESSAGE_BYTES_MAX) as body:
            return await self._sent(_raw_message(request, topic, body), timeout)

    async def _sent(self, message: Message, timeout: float) -> Response:
        producer = self._producer or await self._open_producer()
        try:
            result = await producer.send(message, timeout)
        except VqError as error:
            self._count_failed([error])
            raise
        self._counts.sent += 1
        return _answer({"topic": message.topic, **forms.stored_form(result)}, 201)

    async def send_batch(self, request: Request, timeout: SendTimeout = 10.0) -> Response:
        """Send messages together, to any topics.

        200 says that all of them are stored. Otherwise the problem has `results`, with the outcome
        of each message in the order of the request, if any was sent.
        """
        check_json(request)
        async with self._bodies.of(request) as body:
            batch = forms.read(forms.BatchForm, body)
            caller = caller_of(request)
            for topic in {each.topic for each in batch.messages}:
                caller.check(Right.WRITE, Resource.TOPIC, topic)
            messages = []
            for place, each in enumerate(batch.messages):
                try:
                    messages.append(each.message(each.topic))
                except BodyRefused as error:
                    raise BodyRefused(f"messages.{place}: {error.message}") from error
            producer = self._producer or await self._open_producer()
            try:
                results = await producer.send_batch(messages, timeout)
            except BatchFailed as error:
                return self._batch_failed(error)
        self._counts.sent += len(results)
        return _answer({"results": [forms.stored_form(each) for each in results]})

    def _batch_failed(self, failed: BatchFailed) -> Response:
        """Tell what became of each message, with the status of what is worst."""
        errors = [each for each in failed.outcomes if isinstance(each, VqError)]
        self._count_failed(errors)
        self._counts.sent += len(failed.stored)
        worst = next((each for each in errors if isinstance(each, OutcomeUnknown)), errors[0])
        results = [
            forms.stored_form(each)
            if isinstance(each, SendResult)
            else {"problem": problem_of(each)}
            for each in failed.outcomes
        ]
        document = problem_of(
            worst,
            stored=len(failed.stored),
            refused=len(failed.refused),
            unknown=len(failed.unknown),
            results=results,
        )
        document |= {
            "type": document["type"].replace(document["code"], "BatchFailed"),
            "code": "BatchFailed",
            "detail": failed.message,
            "vq_status": None,
            "retriable": False,
            "hint": "results has the outcome of each message: send those again whose problem is "
            "retriable; unknown ones may be stored",
            "details": {},
        }
        return Response(as_json(document), document["status"], problem_headers(worst))

    def _count_failed(self, errors: Sequence[VqError]) -> None:
        unknown = sum(isinstance(each, OutcomeUnknown) for each in errors)
        self._counts.unknown += unknown
        self._counts.refused += len(errors) - unknown

    async def _open_producer(self) -> MessageProducer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._factory.create_producer(
                    ProducerConfig(buffer_bytes=_BUFFER_BYTES)
                )
            return self._producer

    # Topics, and reading without a group ----------------------------------------------------------
    async def topics(
        self,
        request: Request,
        after: Annotated[
            str, Query(max_length=limits.NAME_CHARS_MAX, description="Only topics behind it.")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=_TOPICS_MAX)] = 100,
    ) -> Response:
        """List topics that the token may read or write."""
        caller = caller_of(request)
        coordinator = cluster_of(self._factory).coordinator
        names = [
            each
            for each in await list_topics(coordinator)
            if each > after and not is_reserved(each) and caller.sees(each)
        ]
        page = names[:limit]  # only of these more is read
        found = await gather_all(read_summary(coordinator, each) for each in page)
        shown = [
            {"name": each.name, "partitions": list(range(each.settings.partitions))}
            for each in found
            if each is not None and each.phase == READY
        ]
        is_last = len(page) == len(names)
        return _answer({"topics": shown, "next": None if is_last else page[-1]})

    async def topic(self, request: Request, topic: TopicPath) -> Response:
        """Tell which partitions a topic has, and which offsets of them can be read."""
        admin = self._factory.admin
        found = await admin.get_topic(topic)
        ends = await admin.bounds(found)
        partitions = []
        for placed in found.partitions:
            end = ends.get(placed.partition)
            partitions.append(
                {
                    "partition": placed.partition,
                    "state": str(placed.state),
                    "earliest": None if end is None else end.earliest,
                    "latest": None if end is None else end.latest,
                }
            )
        return _answer({"name": topic, "partitions": partitions})

    async def read(
        self,
        request: Request,
        topic: TopicPath,
        partition: PartitionPath,
        offset: Annotated[
            int | None, Query(ge=0, le=2**53 - 1, description="Of the first message.")
        ] = None,
        time: Annotated[
            AwareDatetime | None, Query(description="From the first message stored then or later.")
        ] = None,
        start: Annotated[
            StartPosition | None, Query(description="From an end of the partition.")
        ] = None,
        max: Most = 100,
        wait: Wait = 0,
        tags: Annotated[str | None, Query(min_length=1, max_length=4096)] = None,
        where: Annotated[
            str | None, Query(min_length=1, max_length=limits.FILTER_EXPRESSION_BYTES_MAX)
        ] = None,
        content: Show = ContentForm.AUTO,
    ) -> Response:
        """Read messages of a partition from an offset, a time, or an end on; no group is needed."""
        if sum(each is not None for each in (offset, time, start)) != 1:
            raise BodyRefused("give one of offset, time and start", hint="for example `?offset=0`")
        if tags is not None and where is not None:
            raise BodyRefused("give tags or where, not both", hint="where can ask for a tag, too")
        self._unread.check()
        wanted: Wanting = tags if where is None else Where(where)
        reader = await self._open_reader()
        if offset is None:
            moment: datetime | StartPosition | None = time or start
            assert moment is not None
            offset = await reader.offset_at(topic, partition, moment)
        with self._waits(request, wait):
            got = await reader.get(topic, partition, offset, ANSWER_BYTES_MAX, wait, wanted)
        messages, next_offset = list(got[:max]), got.next_offset
        if len(messages) < len(got):
            next_offset = messages[-1].next_offset
        self._counts.read += len(messages)
        shown = [forms.received_form(each, content) for each in messages]
        return _answer({"messages": shown, "next_offset": next_offset})

    async def _open_reader(self) -> MessageConsumer:
        async with self._opening:
            if self._reader is None:
                self._reader = await self._factory.create_consumer(ConsumerConfig())
            return self._reader

    def _waits(self, request: Request, wait_s: float) -> contextlib.AbstractContextManager[None]:
        if not wait_s:
            return contextlib.nullcontext()
        return self._members.wait(caller_of(request).name)

    # Consumers ------------------------------------------------------------------------------------
    async def create(self, request: Request) -> Response:
        """Have a new consumer join a group.

        It is a member of the group as any other. Its lease is renewed by each request that uses it;
        when the lease ends, it leaves the group, and what it has not committed is delivered again.
        """
        wanted = await self._form(request, forms.ConsumerForm)
        caller = caller_of(request)
        caller.check(Right.READ, Resource.GROUP, wanted.group)
        for each in wanted.subscriptions:
            caller.check(Right.READ, Resource.TOPIC, each.topic)
        member = await self._members.create(
            caller.name,
            wanted.group,
            [(each.topic, each.wanted()) for each in wanted.subscriptions],
            start=wanted.start_position,
            lease_s=wanted.lease_s,
            window=wanted.window,
        )
        return _answer(_hosted_form(member), 201, {"Location": f"/v1/consumers/{member.id}"})

    async def describe(self, request: Request, consumer: ConsumerPath) -> Response:
        """Tell what a consumer holds. That does not renew its lease."""
        return _answer(_hosted_form(self._member(request, consumer)))

    async def heartbeat(self, request: Request, consumer: ConsumerPath) -> Response:
        """Renew the lease of a consumer, as while a message is handled for long."""
        self._member(request, consumer).touch()
        return Response(status_code=204)

    async def delete(self, request: Request, consumer: ConsumerPath) -> Response:
        """Have a consumer leave its group; what it has not committed is delivered again."""
        await self._members.delete(self._member(request, consumer))
        return Response(status_code=204)

    async def receive(
        self,
        request: Request,
        consumer: ConsumerPath,
        max: Most = 100,
        wait: Wait = 0,
        fresh: Annotated[
            bool, Query(description="Leave out messages that were given before.")
        ] = False,
        content: Show = ContentForm.AUTO,
    ) -> Response:
        """Receive messages: first those that were given and are not committed, then others.

        So an answer that did not arrive loses nothing: the next request has the same messages. With
        `fresh` they are left out: for a program that handles some while it asks for more. A request
        that receives ends an earlier one of the same consumer that still waits.
        """
        self._unread.check()
        member = self._member(request, consumer)
        with member.used():
            receiver = member.enter()
            messages = [] if fresh else member.consumer.again()[:max]
            if len(messages) < max:
                messages += await self._more(request, member, receiver, max, messages, wait)
        if sum(len(each.content) for each in messages) > 2 * ANSWER_BYTES_MAX:
            messages = _cut(messages)
        self._counts.received += len(messages)
        return _answer(
            {
                "messages": [forms.received_form(each, content) for each in messages],
                "commit": forms.positions_behind(messages),
            }
        )

    async def _more(
        self,
        request: Request,
        member: HostedMember,
        receiver: int,
        most: int,
        messages: Sequence[Message],
        wait_s: float,
    ) -> list[Message]:
        """Return messages that follow those at hand; wait only if there are none."""
        left = most - len(messages)
        more = await member.receive(receiver, left, 0)
        if more or messages or not wait_s:
            return more
        gone = begin_task(until_gone(request.receive))
        try:
            with self._members.wait(member.owner):
                return await member.receive(receiver, left, wait_s, gone=gone)
        finally:
            gone.cancel()
            await asyncio.wait({gone})

    async def stream(
        self, request: Request, consumer: ConsumerPath, content: Show = ContentForm.AUTO
    ) -> Response:
        """Receive messages as server-sent events, until the connection or the consumer ends.

        Commits are explicit, as with the other route; no more messages come than the consumer's
        window while none is committed. The stream keeps the lease as long as no message waits for
        a commit.
        """
        member = self._member(request, consumer)
        last = request.headers.get("last-event-id", "")
        member.touch()
        return EventStream(
            member,
            member.enter(),
            content,
            last,
            waits=functools.partial(self._members.wait, member.owner),
            check=lambda: _check_rights(request.scope[AUTHENTICATE](), member),
            counts=self._counts,
        )

    async def commit(self, request: Request, consumer: ConsumerPath) -> Response:
        """Store that everything before these positions is handled; the lease is renewed."""
        positions = (await self._form(request, forms.CommitForm)).by_partition()
        member = self._member(request, consumer)
        with member.used():
            outcomes = await member.consumer.commit(positions)
            member.committed.set()
        failed = {each: error for each, error in outcomes.items() if error is not None}
        done = [_position_form(each, positions[each]) for each in outcomes if each not in failed]
        self._counts.committed += len(done)
        if not failed:
            return _answer({"committed": done})
        error = next(iter(failed.values()))
        not_done = [
            {**_position_form(each, positions[each]), "problem": problem_of(why)}
            for each, why in failed.items()
        ]
        document = problem_of(error, committed=done, not_committed=not_done)
        return Response(as_json(document), document["status"], problem_headers(error))

    # Shared groups --------------------------------------------------------------------------------
    async def receive_shared(
        self,
        request: Request,
        group: GroupPath,
        max: Most = 10,
        wait: Wait = 0,
        content: Show = ContentForm.AUTO,
    ) -> Response:
        """Receive messages of a shared group, each with a handle.

        They are with the client for `lease_s`; until then it says what becomes of each, with `ack`,
        `nack`, `reject` or `extend`. A message of which it says nothing is delivered again, to
        whoever asks. With `attempt`, the same request again gets the same messages.
        """
        wanted = await self._form(request, forms.SharedReceiveForm)
        caller = caller_of(request)
        for each in wanted.subscriptions:
            caller.check(Right.READ, Resource.TOPIC, each.topic)
        self._unread.check()
        ask = SharedAsk(
            caller.name,
            group,
            tuple((each.topic, each.wanted()) for each in wanted.subscriptions),
            StartPosition(wanted.start),
            WorkingMode(wanted.mode),
        )
        gone = begin_task(until_gone(request.receive))
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._waits(request, wait))
                member = await self._members.shared(ask)
                stack.enter_context(member.used())
                found = await self._received(member, caller, max, wait, wanted, gone)
        except ConsumerGone as error:
            raise InvalidState(f"group {group!r}: {error.message}") from error
        finally:
            gone.cancel()
            await asyncio.wait({gone})
        self._counts.received += len(found)
        return _answer(
            {
                "messages": [
                    forms.delivered_form(
                        each.message, content, handle_text(group, each.handle), each.deliveries
                    )
                    for each in found
                ]
            }
        )

    async def _received(
        self,
        member: SharedMembership,
        caller: Caller,
        most: int,
        wait_s: float,
        wanted: forms.SharedReceiveForm,
        gone: "asyncio.Future[None]",
    ) -> list[SharedDelivery]:
        asks = functools.partial(member.receive, lease_s=wanted.lease_s, wait_s=wait_s, gone=gone)
        if wanted.attempt is not None:
            return await asks(named_seat(caller.name, wanted.attempt), most, repeats=True)
        with self._seats.taken() as seat:
            return await asks(seat, most, repeats=False)

    async def ack(self, request: Request, group: GroupPath) -> Response:
        """Be done with messages. One that is lost was delivered again, or will be."""
        return await self._settled_alike(request, group, SettleKind.ACK)

    async def nack(self, request: Request, group: GroupPath) -> Response:
        """Have messages delivered again, to whoever asks, after a delay."""
        form = await self._form(request, forms.NackForm, 2 * limits.MIB)
        return await self._settled(request, group, form.handles, SettleKind.RELEASE, form.delay_s)

    async def reject(self, request: Request, group: GroupPath) -> Response:
        """Give messages up: nobody gets them any more, and they are no dead letters."""
        return await self._settled_alike(request, group, SettleKind.REJECT)

    async def extend(self, request: Request, group: GroupPath) -> Response:
        """Keep messages for so long from now on; their handles stay the same."""
        form = await self._form(request, forms.ExtendForm, 2 * limits.MIB)
        return await self._settled(request, group, form.handles, SettleKind.EXTEND, form.lease_s)

    async def _settled_alike(self, request: Request, group: str, kind: SettleKind) -> Response:
        """Settle the messages of a body that has handles and nothing else."""
        form = await self._form(request, forms.HandlesForm, 2 * limits.MIB)
        return await self._settled(request, group, form.handles, kind)

    async def _settled(
        self,
        request: Request,
        group: str,
        texts: Sequence[str],
        kind: SettleKind,
        time_s: float = 0.0,
    ) -> Response:
        """Settle messages, and tell which were lost."""
        handles = handles_of(group, texts)
        caller = caller_of(request)
        for topic in dict.fromkeys(each.partition.topic for each in handles):
            caller.check(Right.READ, Resource.TOPIC, topic)
        with self._seats.taken() as seat:
            is_member = self._members.has_shared(group)
            done = await settle_shared(
                self._factory, group, seat, handles, kind, time_s, is_member=is_member
            )
        settled, lost = (
            sum(done),
            [text for text, is_so in zip(texts, done, strict=True) if not is_so],
        )
        self._counts.settled[_VERBS[kind]] += settled
        self._counts.settled["lost"] += len(lost)
        if not lost:
            return _answer({"settled": settled})
        first = next(each for each, is_so in zip(handles, done, strict=True) if not is_so)
        error = lease_lost(first.partition, first.number, group)
        document = problem_of(error, settled=settled, lost=lost)
        return Response(as_json(document), document["status"], problem_headers(error))

    async def _form(
        self, request: Request, kind: type[FormT], bytes_max: int = limits.MIB
    ) -> FormT:
        """Return what the body of a request says."""
        check_json(request)
        async with self._bodies.of(request, bytes_max) as body:
            return forms.read(kind, body)

    def _member(self, request: Request, consumer: str) -> HostedMember:
        caller = caller_of(request)
        member = self._members.get(caller.name, consumer)
        _check_rights(caller, member)
        return member


def _check_rights(caller: Caller, member: HostedMember) -> None:
    """Return if a token still has what it needed when its consumer was made.

    Raises:
        RightRequired: It was taken away.
    """
    caller.check(Right.READ, Resource.GROUP, member.group)
    for topic in member.topics:
        caller.check(Right.READ, Resource.TOPIC, topic)


def caller_of(request: Request) -> Caller:
    """Return who has sent a request."""
    caller: Caller = request.scope[CALLER]
    return caller


def _answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(value), status, {**_HEADERS, **(headers or {})})


def _position_form(partition: TopicPartition, position: int) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition, "next_offset": position}


def _hosted_form(member: HostedMember) -> dict[str, Any]:
    return {
        "consumer": member.id,
        "group": member.group,
        "member": member.consumer.member,
        "lease_s": member.lease_s,
        "lease_left_s": round(member.left_s, 3),
        "uncommitted": member.consumer.count,
        "assignment": [
            {"topic": each.topic, "partition": each.partition}
            for each in member.consumer.assignment()
        ],
        "troubles": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "code": type(trouble.error).__name__,
                "detail": str(trouble.error)[:_DETAIL_CHARS_MAX],
                "since_ms": trouble.since_ms,
            }
            for each, trouble in sorted(member.consumer.troubles().items())
        ],
    }


def _cut(messages: list[Message]) -> list[Message]:
    """Return the first messages, as many as an answer may have."""
    size = 0
    for number, message in enumerate(messages):
        size += len(message.content)
        if size > ANSWER_BYTES_MAX and number:
            return messages[:number]
    return messages


def _raw_message(request: Request, topic: str, body: bytes) -> Message:
    """Return the message that a body is, with what the headers say of it."""
    key = tag = delay_s = None
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.headers.raw:
        name = raw_name.decode("latin-1")
        if not name.startswith("vq-"):
            continue
        try:
            value = raw_value.decode()
        except UnicodeDecodeError as error:
            raise BodyRefused(f"the header {name[:100]} is not UTF-8") from error
        if name == _KEY:
            key = value
        elif name == _TAG:
            tag = value
        elif name == _DELAY:
            delay_s = _seconds_of(value)
        elif name.startswith(_HEADER) and len(name) > len(_HEADER):
            headers[name.removeprefix(_HEADER)] = value
        else:
            raise BodyRefused(
                f"there is no header {name[:100]}",
                hint="there are VQ-Key, VQ-Tag, VQ-Delay and VQ-Header-*",
            )
    return Message(topic, body, tag=tag, key=key, headers=headers or None, delay_s=delay_s)


def _seconds_of(text: str) -> float:
    with contextlib.suppress(ValueError):
        if len(text) <= 20 and text.isascii() and 0 <= float(text) <= limits.DELAY_S_MAX:
            return float(text)
    raise BodyRefused(
        f"vq-delay = {shown(text)} is no number of seconds in [0, {limits.DELAY_S_MAX}]"
    )
