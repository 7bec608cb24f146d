"""A connection whose peer has a quota: its requests wait, its answers tell how long.

It stands in front of ``ServerConnection`` and is used in the same way, so a connection without a
quota costs nothing more than before.

    a request arrives                         is charged, and handled
      while its user or client owes           waits, and nothing more is read from the connection;
                                              connections of one account take turns
      that would wait over THROTTLE_S_MAX is refused as ``Throttled``, before anything was done;
                                              then nothing is read for as long as its bytes would
                                              take at the rate of the account
    it reads messages                         gets as much as may be used at once, and the rest
                                              with the next ones
    an answer leaves                          is charged; it tells how long the next request will
                                              wait, so a client that obeys waits by itself
    a new connection beyond its rate          its first request waits, or is refused, likewise

Not limited: members of the cluster (copies, hand-overs). Requests that decide about a transaction
never wait: who has been slowed down must still be able to commit. They are charged, and refused
when there were far too many requests.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from vq import limits
from vq.broker.security.accounts import Accounts
from vq.clock import Clock
from vq.errors import VqError
from vq.model import TransactionState
from vq.remoting.connection import (
    Closing,
    ConnectionState,
    Opened,
    Request,
    RequestId,
    ServerConnection,
)
from vq.remoting.format import FLAG_DELAY, FLAG_HESSIAN, Command, Header
from vq.remoting.frames import Buffer
from vq.remoting.hello import KnownPeer
from vq.remoting.membership import Principal
from vq.remoting.messages import encode_delay
from vq.security.quotas import BURST_S, QuotaLimit, UsageAccount

if TYPE_CHECKING:
    from vq.broker.connections.broker_session import BrokerSession

#: Reading stops for at least so long after a request was refused: who does not obey gains nothing
#: by haste.
REFUSED_REST_S: Final = 0.5
#: A shorter wait is none: timers are not that exact, and what is owed stays owed.
WAIT_S_MIN: Final = 0.001
#: A read may always be answered with so many bytes.
READ_BYTES_MIN: Final = 16 * limits.KIB
_PUT: Final = Command.PUT.value
#: Reads whose answers may have any part of what there is.
_CUT: Final = frozenset({Command.GET.value, Command.FETCH.value})
_TRANSACT: Final = Command.TRANSACT.value
#: What a request without messages asks of a transaction in order to end it.
_DECISIONS: Final = frozenset(
    {
        TransactionState.PREPARED,
        TransactionState.COMMITTED,
        TransactionState.ROLLED_BACK,
        TransactionState.FORGOTTEN,
    }
)


class _QuotaLine:
    """The connections whose next request waits for one account, in the order of their turns."""

    __slots__ = ("timer", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[MeteredConnection, float] = {}  # since when
        self.timer: asyncio.TimerHandle | None = None


class Meters:
    """What the metered connections of a node share. Loop-bound.

    Args:
        accounts: Of users and clients.
        clock: For durations.
    """

    def __init__(self, accounts: Accounts, clock: Clock) -> None:
        self.accounts = accounts
        self.now = clock.monotonic
        self._lines: dict[UsageAccount, _QuotaLine] = {}
        accounts.changed.listen(self._changed)

    @property
    def waiting(self) -> int:
        """How many connections wait for a quota."""
        return sum(len(each.waiting) for each in self._lines.values())

    @contextmanager
    def timed(self, session: object) -> Iterator[None]:
        """Charge the time that the block takes to the peer of a session."""
        begun = self.now()
        yield
        connection = getattr(session, "connection", None)
        if isinstance(connection, MeteredConnection):
            connection.spent(self.now() - begun)

    def wait(self, connection: "MeteredConnection", account: UsageAccount, since: float) -> None:
        """Have a connection go on when an account owes nothing more and it is its turn."""
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = _QuotaLine()
        line.waiting[connection] = since
        if line.timer is None:
            self._schedule(account, line)

    def leave(self, connection: "MeteredConnection", account: UsageAccount) -> None:
        """Forget a connection that waits."""
        line = self._lines.get(account)
        if line is None:
            return
        line.waiting.pop(connection, None)
        if not line.waiting:
            self._drop(account, line)

    def _schedule(self, account: UsageAccount, line: _QuotaLine) -> None:
        now = self.now()
        first = next(iter(line.waiting.values()))
        delay_s = max(WAIT_S_MIN, min(account.until, first + limits.THROTTLE_S_MAX) - now)
        loop = asyncio.get_running_loop()
        line.timer = loop.call_later(delay_s, self._serve, account, line)

    def _serve(self, account: UsageAccount, line: _QuotaLine) -> None:
        line.timer = None
        while line.waiting:
            now = self.now()
            connection, since = next(iter(line.waiting.items()))
            owes = account.until - now >= WAIT_S_MIN
            if owes and now - since < limits.THROTTLE_S_MAX:
                break
            del line.waiting[connection]
            connection.turn_came(account, refuse=owes)
        if not line.waiting:
            self._drop(account, line)
        elif line.timer is None:
            self._schedule(account, line)

    def _drop(self, account: UsageAccount, line: _QuotaLine) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        if self._lines.get(account) is line:
            del self._lines[account]

    def _changed(self) -> None:
        """Other quotas hold: look again, soon, at what waits."""
        for account, line in list(self._lines.items()):
            if line.timer is not None:
                line.timer.cancel()
            self._schedule(account, line)


class MeteredConnection:
    """See the module's text. Loop-bound.

    Args:
        inner: The connection itself.
        session: Whose it is.
        meters: Shared by all.

    Attributes:
        inner: The connection itself.
        parser: See ``ServerConnection``.
        holds: Nothing is to be read from the peer now.
    """

    __slots__ = (
        "_accounts",
        "_begins",
        "_data",
        "_generation",
        "_kept",
        "_kept_bytes",
        "_line",
        "_meters",
        "_own",
        "_rest",
        "_session",
        "holds",
        "inner",
        "parser",
    )

    def __init__(self, inner: ServerConnection, session: "BrokerSession", meters: Meters) -> None:
        self.inner = inner
        self.parser = inner.parser
        self._session = session
        self._meters = meters
        self._accounts: tuple[UsageAccount, ...] = ()
        self._generation = -1
        self._begins: float | None = None  # of the first request; None: there was one
        self.holds = False
        self._line: UsageAccount | None = None  # in whose line it waits
        self._rest: asyncio.TimerHandle | None = None
        self._kept: deque[Opened | Request | Closing] = deque()  # came while it had to wait,
        self._data: deque[bytes] = deque()  # and behind these
        self._kept_bytes = 0
        self._own: list[Buffer] = []

    # As of ``ServerConnection`` -----------------------------------------------------------------
    @property
    def state(self) -> ConnectionState:
        """See ``ServerConnection``."""
        return self.inner.state

    @property
    def known(self) -> KnownPeer:
        """See ``ServerConnection``."""
        return self.inner.known

    @property
    def principal(self) -> Principal:
        """See ``ServerConnection``."""
        return self.inner.known.principal

    @property
    def pending_frame(self) -> int | None:
        """See ``ServerConnection``."""
        return self.inner.pending_frame

    @property
    def pending_bytes(self) -> int:
        """See ``ServerConnection``; what waits counts, too."""
        return self.inner.pending_bytes + self._kept_bytes

    def small_from(self, data: bytes) -> int:
        """See ``ServerConnection``."""
        return self.inner.small_from(data)

    def data_to_send(self) -> list[Buffer]:
        """See ``ServerConnection``."""
        own, self._own = self._own, []
        return self.inner.data_to_send() + own

    def refuse(self, error: VqError) -> Closing:
        """See ``ServerConnection``."""
        self._drop()
        return self.inner.refuse(error)

    def ended(self) -> None:
        """See ``ServerConnection``."""
        self.inner.ended()
        self._stop_waiting()
        self.release()
        self._drop()

    def _drop(self) -> None:
        """Forget what waits: nothing of it will be carried out."""
        self._kept.clear()
        self._data.clear()
        self._kept_bytes = 0

    def receive_data(self, data: bytes) -> list[Opened | Request | Closing]:
        """See ``ServerConnection``; requests that have to wait are in the answer to a later call.

        Without data: what has waited, as far as it may be handled now.
        """
        if data:
            self._data.append(data)
            self._kept_bytes += len(data)
        passed: list[Opened | Request | Closing] = []
        if self._kept and not self.holds:
            for _ in range(self._pass(self._kept, passed)):
                event = self._kept.popleft()
                if type(event) is Request:
                    self._kept_bytes -= event.request_id.size
        while self._data and not self.holds:
            piece = self._data.popleft()
            self._kept_bytes -= len(piece)
            self._pass_or_keep(self.inner.receive_data(piece), passed)
        return passed

    @property
    def keeps(self) -> bool:
        """See ``ServerConnection``."""
        return bool(self.holds or self._kept or self._data)

    def room_filled(self, size: int) -> list[Opened | Request | Closing]:
        """See ``ServerConnection``, and ``receive_data``."""
        passed: list[Opened | Request | Closing] = []
        self._pass_or_keep(self.inner.room_filled(size), passed)
        return passed

    def _pass_or_keep(
        self,
        events: Sequence[Opened | Request | Closing],
        passed: list[Opened | Request | Closing],
    ) -> None:
        count = self._pass(events, passed)
        if count < len(events):
            self._kept.extend(events[count:])
            self._kept_bytes += _bytes_of(events[count:])

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> list[Buffer]:
        """See ``ServerConnection``."""
        request_id, message = self._charge_answer(request_id, message, len(body))
        return self.inner.reply(request_id, message, body)

    def reply_parts(
        self, request_id: RequestId, message: Header, parts: Sequence[Buffer]
    ) -> list[Buffer]:
        """See ``ServerConnection``."""
        size = sum(map(len, parts))
        request_id, message = self._charge_answer(request_id, message, size)
        return self.inner.reply_parts(request_id, message, parts)

    def reply_error(self, request_id: RequestId, error: VqError) -> list[Buffer]:
        """See ``ServerConnection``."""
        return self.inner.reply_error(request_id, error)

    # Charging -----------------------------------------------------------------------------------
    def join(self) -> None:
        """Look for the accounts of the peer: it has said HELLO, or other quotas hold."""
        self.release()
        session, meters = self._session, self._meters
        self._generation = meters.accounts.generation
        if session.principal.proved:
            return
        self._accounts = meters.accounts.of(session.principal.user, session.client_id)
        for account in self._accounts:
            account.connections += 1

    @property
    def is_needed(self) -> bool:
        """Whether somebody has a quota, or something waits here, or to be sent."""
        return self._meters.accounts.enabled or bool(self._kept or self._data or self._own)

    def spent(self, seconds: float) -> None:
        """Charge time of the loop."""
        if self._accounts:
            now = self._meters.now()
            for account in self._accounts:
                self._charge_account(account, now, (QuotaLimit.TIME, seconds))

    def release(self) -> None:
        """Leave the accounts; nothing is charged any more."""
        for account in self._accounts:
            account.connections -= 1
        self._accounts = ()

    def _connected(self, hello: Any) -> None:
        """The peer has said HELLO."""
        self._session.client_id = getattr(hello, "client_id", "")
        self.join()
        now = self._meters.now()
        self._begins = max((each.connect(now) for each in self._accounts), default=now)

    def _is_limited(self) -> bool:
        """Whether there is an account to charge."""
        if self._generation != self._meters.accounts.generation:
            self.join()
        if self._accounts and self._session.principal.proved:
            now = self._meters.now()
            if self._begins is not None:
                for account in self._accounts:
                    account.disconnect(now)
            self.release()
        return bool(self._accounts)

    def _pass(
        self,
        events: Collection[Opened | Request | Closing],
        passed: list[Opened | Request | Closing],
    ) -> int:
        """Add the events that are handled now.

        Returns:
            How many events are done with; the next one must wait.
        """
        refused: list[RequestId] = []
        since: tuple[UsageAccount, float] | None = None  # why the first of them was refused
        for index, event in enumerate(events):
            if type(event) is Opened:
                self._connected(event.hello)
            elif type(event) is Request and self._is_limited():
                now = self._meters.now()
                decides = _is_decision(event)
                wait_s, account = self._wait(now, of_requests=decides)
                if wait_s > limits.THROTTLE_S_MAX:
                    since = since or (account, wait_s)
                    refused.append(event.request_id)
                    continue
                if wait_s >= WAIT_S_MIN and not decides:
                    if since is not None:
                        self._refuse(refused, *since)
                        self._note_refused(_size_of(refused), now)
                    self._hold(account, now)
                    return index
                self._charge(event, now)
            passed.append(event)
        if since is not None:
            self._refuse(refused, *since)
            self._rest_after(_size_of(refused))
        return len(events)

    def _wait(self, now: float, *, of_requests: bool) -> tuple[float, UsageAccount]:
        """Return how long the next request must wait, and for which account.

        Args:
            now: The time.
            of_requests: Look at nothing but the number of requests.
        """
        if of_requests:
            owed = [(each.pause_s(QuotaLimit.REQUESTS, now), each) for each in self._accounts]
            return max(owed, key=itemgetter(0))
        account = max(self._accounts, key=_until)
        wait_s = account.until - now
        if self._begins is not None:
            wait_s = max(wait_s, self._begins - now)
        return wait_s, account

    def _charge(self, request: Request, now: float) -> None:
        self._begins = None
        request_id, message, _ = request
        messages = 0
        if request_id.command == _PUT:
            messages = message.record_count  # type: ignore[attr-defined]
        elif request_id.command == _TRANSACT:
            messages = sum(each.record_count for each in message.parts)  # type: ignore[attr-defined]
        used = (
            (QuotaLimit.REQUESTS, 1),
            (QuotaLimit.BYTES_IN, request_id.size),
            (QuotaLimit.MESSAGES_IN, messages),
        )
        for account in self._accounts:
            self._charge_account(account, now, *used)
        if request_id.command in _CUT:
            self._bound_answer(message)

    def _charge_account(
        self, account: UsageAccount, now: float, *used: tuple[QuotaLimit, float]
    ) -> None:
        before = max(account.until, now)
        for limit, amount in used:
            if amount:
                account.charge(limit, amount, now)
        if account.until > before:
            self._meters.accounts.note_owed(account, account.until - before)

    def _bound_answer(self, message: Any) -> None:
        """Have a read answered with no more than may be used at once: then it is soon paid for."""
        for account in self._accounts:
            pace = account.paces.get(QuotaLimit.BYTES_OUT)
            if pace is not None:
                most = max(READ_BYTES_MIN, int(pace.per_s * BURST_S))
                message.max_bytes = min(message.max_bytes or most, most)

    def _charge_answer(
        self, request_id: RequestId, message: Header, size: int
    ) -> tuple[RequestId, Header]:
        """Charge an answer, and return it with how long the next request will wait."""
        if not self._accounts or self._session.principal.proved:
            return request_id, message
        now = self._meters.now()
        for account in self._accounts:
            self._charge_account(account, now, (QuotaLimit.BYTES_OUT, size))
        wait_s = max(map(_until, self._accounts)) - now
        if wait_s < WAIT_S_MIN or request_id.flags & FLAG_HESSIAN:
            return request_id, message
        told = type(message)()  # the message may be the answer to others, too
        told.CopyFrom(message)
        told.MergeFromString(encode_delay(wait_s))
        return request_id._replace(flags=request_id.flags | FLAG_DELAY), told

    # Waiting ------------------------------------------------------------------------------------
    def _hold(self, account: UsageAccount, now: float) -> None:
        if self._begins is not None and self._begins - now >= WAIT_S_MIN:
            self._begin_rest(self._begins - now)  # the turn of the connection is known
            self._meters.accounts.note_delay(account)
            return
        self.holds = True
        self._line = account
        self._session.hold()
        self._meters.wait(self, account, now)

    def _begin_rest(self, seconds: float) -> None:
        self.holds = True
        self._session.hold()
        self._rest = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _rest_after(self, size: int) -> None:
        """Read nothing for a while: requests of so many bytes were refused."""
        self._begin_rest(max(REFUSED_REST_S, self._note_refused(size, self._meters.now())))

    def _note_refused(self, size: int, now: float) -> float:
        return max((each.refuse(size, now) for each in self._accounts), default=0.0)

    def turn_came(self, account: UsageAccount, *, refuse: bool) -> None:
        """Go on with what waits: the account owes nothing, or it has waited long enough.

        Args:
            account: For which it waited.
            refuse: The account still owes: refuse what waits.
        """
        self._meters.accounts.note_delay(account)
        self._line = None
        if not refuse:
            self._go_on()
            return
        refused = [each.request_id for each in self._kept if type(each) is Request]
        others = [each for each in self._kept if type(each) is not Request]
        self._kept = deque(others)
        self._kept_bytes -= _size_of(refused)
        self._refuse(refused, account, account.until - self._meters.now())
        self._rest_after(_size_of(refused))
        self._session.go_on()  # the answers leave

    def _go_on(self) -> None:
        """Wait no longer; the session reads again, and takes what has waited first."""
        self._stop_waiting()
        if self.holds:
            self.holds = False
            self._session.go_on()

    def _stop_waiting(self) -> None:
        if self._line is not None:
            self._meters.leave(self, self._line)
            self._line = None
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _refuse(self, requests: Sequence[RequestId], account: UsageAccount, wait_s: float) -> None:
        """Answer requests with one error: what they owe, and the first of them would wait."""
        now = self._meters.now()
        limit = account.worst(now)
        if self._begins is not None and self._begins > max(account.until, now):
            limit = QuotaLimit.CONNECTIONS
        error = self._meters.accounts.refusal(
            account, limit, wait_s, limits.THROTTLE_S_MAX, requests=len(requests)
        )
        self._own += self.inner.reply_errors(requests, error)


def _until(account: UsageAccount) -> float:
    return account.until


def _bytes_of(events: Sequence[Opened | Request | Closing]) -> int:
    return sum(each.request_id.size for each in events if type(each) is Request)


def _size_of(requests: Sequence[RequestId]) -> int:
    return sum(each.size for each in requests)


def _is_decision(request: Request) -> bool:
    """Whether it decides about a transaction and sends nothing: no body, and no large header."""
    request_id, message, _ = request
    return (
        request_id.command == _TRANSACT
        and not request_id.size
        and not message.parts  # type: ignore[attr-defined]
        and message.state in _DECISIONS  # type: ignore[attr-defined]
    )
