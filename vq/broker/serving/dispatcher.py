"""The door of a node: every request passes through ``Dispatcher.take`` once it is decoded.

Here it is known who asks, for what, and for which partition. In this order:

    may the peer ask that            ``Command.access``; and if the node looks at rights of users,
                                     what the request needs (``security.request_access``)
    does the node refuse it          the reason that its route names (``reasons``)
    which channel is it for          if it is to be looked up, or its log opened, the request waits
    what carries it out              the handler of its route; what it raises is the answer

What a request takes of the bounds of its connection and of the node was charged before it came
here (``server``), and is free again with its answer. A request is answered, parked (in its channel,
or until its topic was looked up or its log opened), or handed to the flush it waits for before the
next one is carried out. PUTs that follow one that waits here wait behind it.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.connections.shares import WAITED_PER_TURN
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.puts import acknowledge_known
from vq.broker.security.request_access import RequestAccess
from vq.broker.serving.directory import Directory, known, look_up
from vq.broker.standing.gate import Gate
from vq.errors import (
    DiskFull,
    InternalError,
    MemberRequired,
    NotMaster,
    StorageFailed,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import COMMANDS, Access, Header

logger = get_logger(__name__)

#: A PUT that knows a newer epoch than this node waits so long: its claim may be under way.
HOLD_S: Final = 1.0
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper

#: Of a handler that works for longer. It makes the header of the answer, perhaps with the body; or
#: None: it has answered itself.
Work = Coroutine[Any, Any, Header | tuple[Header, bytes] | None]


def _never(_channel: Channel) -> bool:
    return False


class Route(NamedTuple):
    """How a command is carried out; one for each is in ``parts``.

    Attributes:
        handler: Called with session, request id and header. It answers, now or later, or raises
            the error that is the answer, or returns the coroutine that makes the answer.
        why_not: Why the node refuses the request, see ``reasons``; None: it never does.
        of_partition: The header names one partition. ``handler`` gets its channel first, once that
            is known.
        opens: Whether the handler needs the channel's log, and it can be opened.
        appends: It is PUT. The handler gets the body, too, and requests of one connection to one
            partition are carried out in the order they were sent.
        with_body: The handler gets the body, too.
    """

    handler: Callable[..., Work | None]
    why_not: Callable[[Session, Any, Channel | None], VqError | None] | None = None
    of_partition: bool = False
    opens: Callable[[Channel], bool] = _never
    appends: bool = False
    with_body: bool = False


class Dispatcher:
    """See the module's text.

    Args:
        directory: Has the channels.
        context: Of these.
        gate: Knows why the whole node takes no requests.
        tasks: Work of handlers that takes longer.
        access: Knows what users may do; None: the node does not look.

    Attributes:
        routes: How each command is carried out.
    """

    def __init__(
        self,
        routes: Mapping[int, Route],
        directory: Directory,
        context: Context,
        *,
        gate: Gate,
        tasks: Tasks,
        access: RequestAccess | None = None,
    ) -> None:
        self.routes = dict(routes)
        self._access = access
        self._of_users = {each for each in routes if COMMANDS[each].access is Access.ANYONE}
        self._guarded = routes.keys() - self._of_users
        if access is not None:
            self._guarded |= {each for each in routes if COMMANDS[each].needs}
        self._directory = directory
        self._channels = directory.channels
        self._context = context
        self._gate = gate
        self._tasks = tasks
        self._lines: dict[tuple[Session, TopicPartition], deque[_WaitingRequest]] = {}
        self._due: dict[tuple[Session, TopicPartition], None] = {}  # lines that go on next turn
        self._left = WAITED_PER_TURN
        self._held: deque[_WaitingRequest] = deque()
        self._releases = False  # held PUTs go on in turns, and whoever comes now waits behind them
        self._looks_again = False
        gate.moved.listen(self._release_puts)

    def take(
        self,
        session: Session,
        request_id: RequestId,
        header: Any,
        body: bytes,
        *,
        waited: bool = False,
    ) -> None:
        """Carry out a request, have it wait, or refuse it. Raises nothing.

        Args:
            session: Has sent it.
            request_id, header, body: The request.
            waited: For its turn, and for its log; it does not do so again.
        """
        command = request_id.command
        route = self.routes[command]
        key: TopicPartition | None = None
        channel: Channel | None = None
        try:
            if command in self._guarded:
                self._check_access(session, command, header, body)
            if route.of_partition:
                key = _new(TopicPartition, (header.topic, header.partition))
                if route.appends and self._lines and not waited and (session, key) in self._lines:
                    self._wait(key, _WaitingRequest(session, request_id, header, body))
                    return
                if route.appends and self._releases and not waited:
                    self._keep(session, request_id, header, body)
                    return
                channel = self._channels.get(key)
                if channel is not None and header.topic_id not in (channel.topic_id, ""):
                    channel = None  # of another topic of that name
            if route.why_not is not None:
                error = route.why_not(session, header, channel)
                if error is not None:
                    if not route.appends:
                        session.refuse(request_id, error)
                    elif not self._put_again(channel, session, request_id, header):
                        self._hold(session, request_id, header, body, error)
                    return
            if key is None:
                work = route.handler(session, request_id, header)
            elif channel is None or (channel.log is None and not waited and route.opens(channel)):
                self._wait(key, _WaitingRequest(session, request_id, header, body))
                return
            elif route.appends or route.with_body:
                work = route.handler(channel, session, request_id, header, body)
            else:
                work = route.handler(channel, session, request_id, header)
            if work is not None and not self._tasks.start(_answer(session, request_id, key, work)):
                work.close()
        except VqError as error:
            session.refuse(request_id, error)
        except Exception as error:  # noqa: BLE001  the request must be answered
            _fail(session, request_id, key, error)

    def _check_access(self, session: Session, command: int, header: Any, body: bytes) -> None:
        """Return if the peer may have a request carried out.

        Raises:
            MemberRequired: It may not send the command.
            VqError: A user lacks a right; see ``RequestAccess.check``.
        """
        principal = session.principal
        if command in self._of_users and self._access is not None:
            self._access.check(principal, command, header, body)
            return
        row = COMMANDS[command]
        if principal.may(row.access, self._context.group):
            return
        who = f"of {principal.group or 'a command'}" if principal.proved else "not proved"
        raise MemberRequired(
            f"{row.name} is for members of {row.access.value} only, this connection is {who}"
        )

    # PUTs that the node refuses -----------------------------------------------------------------
    def _put_again(
        self,
        channel: Channel | None,
        session: Session,
        request_id: RequestId,
        header: wire.PutRequest,
    ) -> bool:
        """See ``puts.acknowledge_known``."""
        if channel is None or not isinstance(self._gate.put_refusal, DiskFull):
            return False
        if not (self._context.role.holds() or channel.goes_on):
            return False
        return acknowledge_known(channel, session, request_id, header)

    def _hold(
        self,
        session: Session,
        request_id: RequestId,
        header: wire.PutRequest,
        body: bytes,
        error: VqError,
    ) -> None:
        """Refuse a PUT, or hold it: this node hands over, or it may be about to lead."""
        if not self._gate.holds and not self._may_lead_soon(header):
            self._context.counters.refused += 1
            session.refuse(request_id, error)
            return
        self._keep(session, request_id, header, body)

    def _keep(
        self, session: Session, request_id: RequestId, header: wire.PutRequest, body: bytes
    ) -> None:
        held = _WaitingRequest(session, request_id, header, body)
        held.until = self._context.clock.monotonic() + HOLD_S
        self._held.append(held)
        self._look_again()

    def _may_lead_soon(self, header: wire.PutRequest) -> bool:
        """Whether a client knows that this node leads, before this node does."""
        return header.epoch > self._gate.epoch and isinstance(self._gate.put_refusal, NotMaster)

    def _look_again(self) -> None:
        if self._held and not self._looks_again:
            self._looks_again = True
            self._context.call_later(HOLD_S, self._look_at_held)

    def _look_at_held(self) -> None:
        self._looks_again = False
        self._release_puts()
        self._look_again()

    def _release_puts(self) -> None:
        """Carry out the PUTs that were held, in order, or refuse them; some go on waiting."""
        now = self._context.clock.monotonic()
        held, self._held = self._held, deque()
        self._releases = False
        while held:
            each = held[0]
            waits = not each.ended and self._may_lead_soon(each.header)
            keeps = self._gate.holds or (waits and now < each.until)
            if not (keeps or each.ended or self._has_turn()):
                self._releases = True
                self._held.extend(held)
                return
            held.popleft()
            if each.ended:
                continue
            if keeps:
                self._held.append(each)
            elif waits and self._gate.put_refusal is not None:
                self._context.counters.refused += 1
                each.refuse(self._gate.put_refusal)
            else:
                each.go_on(self.take)

    # Requests whose channel is not known, or not open -------------------------------------------
    # PUTs of one connection to one partition are carried out in the order they were sent, so a PUT
    # waits behind one that waits. Each connection has a queue of its own: a topic that must be
    # looked up delays only the connection that named it. One look-up, or one log that is open now,
    # may have kept thousands of requests waiting, so they are carried out in turns of the loop.
    def _wait(self, key: TopicPartition, waiting: "_WaitingRequest") -> None:
        line = self._lines.get((waiting.session, key))
        is_first = line is None
        if line is None:
            line = self._lines[waiting.session, key] = deque()
        waiting.line = line
        line.append(waiting)
        if is_first:
            self._advance(waiting.session, key)

    def _advance(self, session: Session, key: TopicPartition) -> None:
        """Carry out the requests that wait, in order, until one must go on waiting."""
        line = self._lines[session, key]
        while line:
            first = line[0]
            if not first.is_decided:
                asked = first.header.topic_id
                channel = known(self._directory, key, asked)
                if channel is None:
                    found = partial(self._found, session, key, asked, len(line))
                    look_up(self._directory, key, asked, found, session)
                    return
                if not self._is_ready(channel, first):
                    opened = partial(self._opened, session, key, channel, len(line))
                    self._directory.open(channel, opened)
                    return
            if not self._has_turn():
                self._due[session, key] = None
                return
            line.popleft()
            if first.error is not None:
                first.refuse(first.error)
            else:
                first.go_on(partial(self.take, waited=True))
        del self._lines[session, key]

    def _has_turn(self) -> bool:
        """Whether one more that has waited may be carried out in this turn of the loop."""
        if not self._left:
            return False
        if self._left == WAITED_PER_TURN:
            self._context.call_later(0, self._next_turn)
        self._left -= 1
        return True

    def _next_turn(self) -> None:
        """Carry out more of what would have been too much for one turn of the loop."""
        self._left = WAITED_PER_TURN
        if self._releases:
            self._release_puts()
        while self._due and self._left:
            session, key = next(iter(self._due))
            del self._due[session, key]
            self._advance(session, key)

    def _is_ready(self, channel: Channel, waiting: "_WaitingRequest") -> bool:
        """Whether a channel can carry out a request at once."""
        route = self.routes[waiting.request_id.command]
        return channel.log is not None or not route.opens(channel)

    def _found(
        self,
        session: Session,
        key: TopicPartition,
        asked: str,
        count: int,
        found: Channel | VqError,
    ) -> None:
        """Go on after a look-up for the first request that waits.

        An error holds for all requests for that topic id that waited when the look-up began, and
        for no later one: the topic may have been made before that was sent.
        """
        if isinstance(found, VqError):
            _decide(self._lines[session, key], count, (asked,), found)
        self._advance(session, key)

    def _opened(self, session: Session, key: TopicPartition, channel: Channel, count: int) -> None:
        """Go on once the log is open; if it is not, the channel refuses what waits."""
        if channel.log is None:
            _decide(self._lines[session, key], count, (channel.topic_id, ""))
        self._advance(session, key)


async def _answer(
    session: Session, request_id: RequestId, partition: TopicPartition | None, work: Work
) -> None:
    """Answer with what a handler's work makes, or with what it raises."""
    try:
        answer = await work
        if isinstance(answer, tuple):
            session.reply(request_id, *answer)
        elif answer is not None:
            session.reply(request_id, answer)
    except VqError as error:
        session.refuse(request_id, error)
    except OSError as error:
        name = COMMANDS[request_id.command].name
        session.refuse(request_id, StorageFailed(f"{name}: {error}"))
    except Exception as error:  # noqa: BLE001  the request must be answered
        _fail(session, request_id, partition, error)


def _fail(
    session: Session, request_id: RequestId, partition: TopicPartition | None, error: Exception
) -> None:
    """Answer a request at which the broker has failed."""
    logger.error(
        "request failed",
        peer=session.address,
        request=request_id,
        partition=partition,
        exc_info=error,
    )
    session.refuse(request_id, InternalError(f"{type(error).__name__}: {error}"))


class _WaitingRequest:
    """A request that waits for its channel, or a PUT that is held. It ends with its connection.

    Then nothing of it is kept, not only its count is gone: a client that sends, disconnects and
    connects again must not fill the memory during a slow look-up. Such a PUT was not answered, and
    the client sends it again over its next connection.

    Attributes:
        line: In which it waits for its channel; all in there are of its connection.
        is_decided: It is known what becomes of it; it only waits for its turn.
        error: Why it is refused when its turn comes; None: it is carried out.
        until: A PUT that is held is refused then.
    """

    __slots__ = (
        "_body",
        "error",
        "header",
        "is_decided",
        "line",
        "request_id",
        "session",
        "until",
    )

    def __init__(self, session: Session, request_id: RequestId, header: Any, body: bytes) -> None:
        self.session = session
        self.request_id = request_id
        self.header = header
        self.line: deque[_WaitingRequest] | None = None
        self.is_decided = False
        self.error: VqError | None = None
        self.until = 0.0
        self._body: bytes | None = body
        session.waiting[self] = None

    @property
    def ended(self) -> bool:
        """Whether its connection has ended, or it was handled."""
        return self._body is None

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self._take()
        self.header = None
        if self.line is not None:
            self.line.clear()

    def go_on(self, door: Callable[[Session, RequestId, Any, bytes], None]) -> None:
        """Have the request carried out, unless its connection has ended."""
        body = self._take()
        if body is not None:
            door(self.session, self.request_id, self.header, body)

    def refuse(self, error: VqError) -> None:
        """Answer with an error, unless the connection has ended."""
        if self._take() is not None:
            self.session.refuse(self.request_id, error)

    def _take(self) -> bytes | None:
        body, self._body = self._body, None
        if body is not None:
            self.session.waiting.pop(self, None)
        return body


def _decide(
    line: deque[_WaitingRequest],
    count: int,
    topic_ids: tuple[str, ...],
    error: VqError | None = None,
) -> None:
    """Have those of the first ``count`` that name one of the topic ids wait for their turn alone.

    They come before the others, which stay in order.
    """
    first = [line.popleft() for _ in range(min(count, len(line)))]  # none, if they have ended
    line.extendleft(each for each in reversed(first) if each.header.topic_id not in topic_ids)
    decided = [each for each in first if each.header.topic_id in topic_ids]
    for each in decided:
        each.is_decided, each.error = True, error
    line.extendleft(reversed(decided))
