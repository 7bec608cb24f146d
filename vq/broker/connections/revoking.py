"""Ends reads that wait when the right to read was withdrawn.

A request is decided when it comes. A FETCH, a GET or a RECEIVE may then wait, and a fetch session
lasts as long as its connection. So when other rules hold, or none, all of them are looked at again:
some in each turn of the loop. What is added to a session meanwhile is decided by the new rules.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from vq.broker.base.session import Revocable
from vq.broker.connections.broker_session import BrokerSession
from vq.broker.connections.server import Server
from vq.broker.security.authority import Authority
from vq.broker.security.known_rules import KnownRules

#: Partitions that are looked at in one turn of the loop.
LOOKS_PER_TURN: Final = 1_000


class Revoker:
    """See the module's text. Loop-bound.

    Args:
        server: Has the connections.
        known: Tells when other rules hold.
        authority: Decides.
        call_later: Calls back after so many seconds, on the loop.
    """

    def __init__(
        self,
        server: Server,
        known: KnownRules,
        authority: Authority,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._server = server
        self._call_later = call_later
        self._left: deque[BrokerSession] = deque()
        self._goes_on = False
        if authority.enforces:
            known.changed.listen(self._begin)

    def _begin(self) -> None:
        self._left = deque(self._server.sessions)
        if self._left and not self._goes_on:
            self._go_on()

    def _go_on(self) -> None:
        looks = 0
        while self._left and looks < LOOKS_PER_TURN:
            session = self._left.popleft()
            looks += 1
            if session.principal.proved:
                continue
            for waiting in list(session.waiting):
                if isinstance(waiting, Revocable):
                    looks += waiting.look_at_rights()
        self._goes_on = bool(self._left)
        if self._goes_on:
            self._call_later(0, self._go_on)
