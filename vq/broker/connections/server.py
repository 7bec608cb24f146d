"""All connections of a node: listening, their bounds and deadlines, and whose requests wait.

In here: what connections share. Not in here: one connection (``broker_session``), who may connect
(``admission``), and handling of requests (``dispatcher``).
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Any, Final, cast

from vq.broker.base.config import ConnectionLimits
from vq.broker.base.debts import Debts
from vq.broker.base.notice import Notice
from vq.broker.base.session import Door, Session, is_own_fault
from vq.broker.connections.admission import Admission
from vq.broker.connections.broker_session import BrokerSession
from vq.broker.connections.loop_spin import LoopSpin
from vq.broker.connections.metered_connection import MeteredConnection, Meters
from vq.broker.connections.shares import (
    GATHERED_PER_TURN,
    REQUESTS_PER_TURN,
    WAITED_PER_TURN,
    TurnLine,
    shared,
)
from vq.broker.security.accounts import Accounts
from vq.broker.security.authentication import Authentication
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import AuthenticationFailed, Busy, InvalidState, OutcomeUnknown, VqError
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.connection import (
    RequestId,
    ServerConnection,
)
from vq.remoting.membership import Proving
from vq.remoting.transport import Listener, Network
from vq.turn import Turn

logger = get_logger(__name__)

#: Requests may be refused at once as many as are paid for in this time ...
REFUSED_BURST_S: Final = 5.0
#: ... and whoever brings more is read again after this time at the latest.
REFUSED_PAUSE_S: Final = 10.0
#: A connection that was ended for what it sent costs as much as so many refused requests.
ENDED_COST: Final = 20.0
#: So does one whose peer leaves, within this time, instead of a proof of who it is.
CUT_LOGIN_S: Final = 2.0
#: A new connection of an address that owes much counts as so many.
OWING_WEIGHT: Final = 8.0
#: How many silent connections are ended when the process has run out of file descriptors.
SILENT_ENDED: Final = 16
#: A connection that keeps one part in so many of what the largest one keeps is large, too: a batch
#: of the largest size beside a frame of the largest size.
LARGE_PART: Final = 4


class Server:
    """All connections of a node.

    Attributes:
        limits: Their bounds.
        door: Takes every request, from ``listen`` on; see ``dispatcher``.
        turn: Where sessions announce that they have something to send.
        spin: Keeps the loop awake for a peer that sends one request at a time; None: nothing does.
        sessions: Every connection that is not gone yet, in order of arrival.
        requests_waiting: Requests of all sessions without an answer, reads not counted.
        reads_waiting: Reads (GET, FETCH, REPLICATE) of all sessions without an answer. They may
            wait for data, and so never make a connection pause.
        put_bytes: Bytes of the bodies of these requests, and of large headers: what PUTs bring.
        gathered_bytes: Bytes kept for all sessions: of incomplete frames, and of requests that wait
            for a turn of the loop, or for room.
        requests_left: How many more requests may be handled in this turn of the loop.
        gathered_left: How many more bytes of incomplete frames may be read in it, but for one read
            of each connection; those that bring more take turns.
        line: The sessions whose requests wait for a turn.
        held: The sessions whose next request waits until the node has room for it.
        requests_shared, reads_shared, put_bytes_shared: From here on, only sessions with few of
            them get more; see ``shares``.
        lingering: Ended connections whose peers still have time to read the reason.
        refused: Connections ended because of a bound, or because of what their peer did.
        failed_handshakes: TLS connections that ended before their handshake did.
        refusals: How many requests were answered with which error.
        debts: What addresses, and users at them, owe for what they have brought in vain; from
            ``debt_max`` on, connections of theirs that brought much of it are not read.
        admission: Who may connect.
        authentication: As which user; None: nobody is asked.
        meters: What they may use; None: that is not limited.
        swept: Told at the end of each sweep.
    """

    door: Door
    _door: Door | None = None  # what was given to ``listen``

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        turn: Turn,
        clock: Clock,
        gate: Gate,
        proving: Proving | None = None,
        authentication: Authentication | None = None,
        accounts: Accounts | None = None,
        spin: LoopSpin | None = None,
    ) -> None:
        self.limits = limits
        self.turn = turn
        self.spin = spin
        self._gate = gate
        self._listener: Listener | None = None
        self.proving = proving
        self.authentication = authentication
        self.meters: Meters | None = None
        if accounts is not None:
            self.meters = Meters(accounts, clock)
            accounts.changed.listen(self._quotas_changed)
        self.clock = clock
        self.now = clock.monotonic
        self.sessions: dict[BrokerSession, None] = {}
        self.paused: dict[BrokerSession, None] = {}
        self.requests_waiting = 0
        self.reads_waiting = 0
        self.put_bytes = 0
        self.gathered_bytes = 0
        self.requests_left = REQUESTS_PER_TURN
        self.gathered_left = GATHERED_PER_TURN
        self.line = TurnLine()
        self.held = TurnLine()
        self.requests_shared = shared(limits.requests_waiting_max)
        self.reads_shared = shared(limits.reads_waiting_max)
        self.put_bytes_shared = shared(limits.put_bytes_waiting_max)
        turn.on_end(self._begin_turn)
        self.lingering: dict[BrokerSession, None] = {}
        self.refused = 0
        self.swept: Final = Notice[[]]()
        self.failed_handshakes = 0
        self.refusals: Counter[type[VqError]] = Counter()
        per_s = limits.refused_per_s
        self.debts = Debts(per_s, (REFUSED_BURST_S + REFUSED_PAUSE_S) * per_s)
        self.debt_max: Final = REFUSED_BURST_S * per_s
        self.admission = Admission(limits)
        self._bad_peers: Counter[str] = Counter()
        self._last_bad: VqError | None = None

    # Listening ----------------------------------------------------------------------------------
    async def listen(self, network: Network, address: Address, door: Door) -> None:
        """Accept connections from now on, and have ``door`` take their requests.

        Raises:
            AddressUnavailable: The address is taken, or is none of this machine.
        """
        self._door = door
        self._choose_door()
        self._listener = await network.listen(
            address,
            self.new_session,
            on_full=self.end_silent,
            new_per_s=self.limits.new_per_s,
            weight=self._weight,
        )

    def owes_much(self, debtor: str) -> bool:
        """Whether an address, or a user at one, has brought so much in vain that it must wait."""
        return self.debts.of(debtor, self.now()) >= self.debt_max

    def _weight(self, address: str) -> float:
        return OWING_WEIGHT if self.owes_much(address) else 1.0

    @property
    def address(self) -> Address:
        """Where it listens, or listened.

        Raises:
            InvalidState: It did not yet.
        """
        if self._listener is None:
            raise InvalidState("the broker does not listen: it was not started, or it stopped")
        return self._listener.address

    @property
    def trouble(self) -> str:
        """Why it accepts no connections now; "": it does, or does not listen."""
        return self._listener.trouble if self._listener is not None else ""

    def stop_listening(self) -> None:
        """Accept no more connections; open ones stay open."""
        if self._listener is not None:
            self._listener.close()

    async def wait_closed(self) -> None:
        """Wait until the address is free again."""
        if self._listener is not None:
            await self._listener.wait_closed()

    def new_session(self) -> BrokerSession:
        """Return the protocol of a new connection; what a listener is given."""
        return BrokerSession(self)

    def new_connection(self, session: BrokerSession) -> ServerConnection | MeteredConnection:
        """Return the state of a new connection."""
        made = self._connection_of(session)
        if self.meters is None or not self.meters.accounts.enabled:
            return made
        return MeteredConnection(made, session, self.meters)

    def _connection_of(self, session: BrokerSession) -> ServerConnection:
        authentication = self.authentication
        if authentication is None:
            return ServerConnection(
                self._gate.identity,
                proving=self.proving,
                requests_max=self.limits.requests_in_flight_max,
                room_left=self._room_left,
            )
        return ServerConnection(
            self._gate.identity,
            authenticate=partial(authentication.begin, session),
            mechanisms=authentication.mechanisms,
            proving=self.proving,
            requests_max=self.limits.requests_in_flight_max,
            room_left=self._room_left,
        )

    def _room_left(self) -> int:
        """Return for how many bytes there may be room before they come.

        A half of what may be kept: what is only announced must not end those that have sent more.
        """
        return self.limits.gathered_bytes_max // 2 - self.gathered_bytes

    # Quotas -------------------------------------------------------------------------------------
    def _quotas_changed(self) -> None:
        """Meter all connections if somebody has a quota, and none otherwise."""
        meters = self.meters
        assert meters is not None
        enabled = meters.accounts.enabled
        for session in self.sessions:
            connection = session.connection
            if isinstance(connection, MeteredConnection):
                if not connection.is_needed:
                    connection.release()
                    session.connection = connection.inner
            elif enabled:
                session.connection = MeteredConnection(connection, session, meters)
        self._choose_door()

    def _choose_door(self) -> None:
        """Measure the time of requests only while somebody has a limit of it."""
        if self._door is not None:
            timed = self.meters is not None and self.meters.accounts.limits_time
            self.door = self._take_timed if timed else self._door

    def _take_timed(
        self, session: Session, request_id: RequestId, header: Any, body: bytes
    ) -> None:
        assert self._door is not None
        assert self.meters is not None
        with self.meters.timed(session):
            self._door(session, request_id, header, body)

    def admit(self, session: BrokerSession) -> None:
        """Count a new connection; end the connections that exceed a bound, perhaps itself."""
        self.sessions[session] = None
        for peer, error in self.admission.admit(session, self.now()):
            # A newcomer's HELLO may be under way; one that was silent for long has sent nothing.
            cast("BrokerSession", peer).end(error, linger=peer is session)

    def too_many_reads(self) -> Busy:
        """Return the error for a read beyond the node's bound."""
        return Busy(
            f"{self.reads_waiting - 1} reads wait for data on this node, at most reads_waiting_max "
            f"= {self.limits.reads_waiting_max} may, and {self.reads_shared} for connections with "
            "many: end readers that are not needed, or raise reads_waiting_max of the broker; a "
            "client reads many partitions with one FETCH"
        )

    def _begin_turn(self) -> None:
        """Begin the next turn: have requests handled that waited for it."""
        self.requests_left = REQUESTS_PER_TURN
        self.gathered_left = GATHERED_PER_TURN
        if self.held.addresses:
            taken = self.held.take(WAITED_PER_TURN // 2)
            if taken:  # else the room comes with an answer, which ends a turn, or with a sweep
                self.requests_left -= taken
                self.turn.schedule()
        if self.line.addresses:
            self.requests_left -= WAITED_PER_TURN
            self.turn.schedule()
            self.line.take(WAITED_PER_TURN)

    def end_largest(self) -> None:
        """End the connection that costs most memory, of the address that costs most.

        Of those that keep nearly as much as the largest one, it is the one whose frame has been
        incomplete for longest: one that receives a large frame just now is not the culprit. The
        others of them wait if they owe as much as the one that is ended will.
        """
        kept: Counter[str] = Counter()
        for each in self.sessions:
            kept[each.counted_as] += each.gathered
        ((address, _),) = kept.most_common(1)
        now = self.now()
        peers = [each for each in self.sessions if each.counted_as == address]
        most = max(each.gathered for each in peers)
        large = [each for each in peers if each.gathered * LARGE_PART >= most]
        largest = max(large, key=lambda each: (each.stalled_s(now), each.gathered))
        for each in large:
            each.owing.suspect()
        limits = self.limits
        largest.end(
            Busy(
                f"{self.gathered_bytes} bytes of incomplete frames are kept for all connections, "
                f"at most {limits.gathered_bytes_max} may be; this one keeps {largest.gathered} "
                f"bytes, and {address} more than any other address"
            )
        )

    def opened(self, session: BrokerSession) -> None:
        """Note that a session said HELLO."""
        self.admission.spoke(session, self.now())

    def leaves(self, session: BrokerSession, error: VqError) -> None:
        """Note that a connection is being ended: it does not count any more.

        Each sweep writes one log line for all of them.
        """
        self.admission.forget(session, self.now())
        self.refused += 1
        if self._is_own_end(session, error):
            self.debts.owe(session.counted_as, ENDED_COST, self.now())
        self._bad_peers[session.counted_as] += 1
        self._last_bad = error

    def _is_own_end(self, session: BrokerSession, error: VqError) -> bool:
        """Whether a connection is ended for what its peer did; count log-ins that failed."""
        if isinstance(error, AuthenticationFailed):
            if session.principal.user:
                return False  # it was who it said; the user is another one now, or gone
            if self.authentication is not None:
                self.authentication.failed(session)
            return True
        if isinstance(error, Busy):
            return self.authentication is not None and self.authentication.must_wait(session)
        return is_own_fault(error) and not isinstance(error, OutcomeUnknown)

    def handshake_failed(self, session: BrokerSession, error: Exception | None) -> None:
        """Note that a TLS connection ended before its handshake did.

        It is owed, unless time has passed: a slow broker must not hold it against its clients.
        """
        self.failed_handshakes += 1
        if error is not None and not isinstance(error, TimeoutError):
            self.debts.owe(session.counted_as, ENDED_COST, self.now())

    def login_cut(self, session: BrokerSession, after_s: float) -> None:
        """Note that a peer left when it had its challenge, so many seconds after it came.

        It is owed, unless that is long: a slow broker must not hold it against its clients.
        """
        if after_s < CUT_LOGIN_S:
            self.debts.owe(session.counted_as, ENDED_COST, self.now())

    def remove(self, session: BrokerSession) -> None:
        """Forget a connection that is gone."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        if self.spin is not None:
            self.spin.forget(session)
        self.paused.pop(session, None)
        self.lingering.pop(session, None)
        self.admission.forget(session, self.now())

    def end_silent(self) -> None:
        """End some silent connections: the process has no file descriptor for new ones."""
        for _ in range(SILENT_ENDED):
            peer = self.admission.oldest_silent()
            if peer is None:
                return
            error = Busy("the broker has run out of file descriptors, and this one sent no HELLO")
            cast("BrokerSession", peer).end(error, linger=False)

    async def run(self) -> None:
        """Sweep, for ever."""
        while True:
            await asyncio.sleep(self.limits.sweep_interval_s)
            self.sweep()

    def sweep(self) -> None:
        """Check deadlines, resume reading where no bound is reached, and log ended connections."""
        now = self.now()
        for session in list(self.sessions):
            session.sweep(now)
        for session in list(self.paused):
            if session.gathered:
                session.read_later()  # not all at once: their debts are paid at the same time
            else:
                session.maybe_resume()
        if self.held.addresses or self.line.addresses:
            self.turn.schedule()
        if self._bad_peers:
            (address, count), *others = self._bad_peers.most_common()
            logger.warning(
                "connections ended for breaking a rule",
                address=address,
                connections=count,
                other_addresses=len(others),
                last_error=self._last_bad,
            )
            self._bad_peers.clear()
        self.swept.tell()

    def end_all(self, error: VqError) -> None:
        """End every connection, telling the peers why."""
        for session in list(self.sessions):
            session.end(error)
