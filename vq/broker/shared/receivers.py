"""Members that wait at a journal for messages of their groups. No I/O."""

import asyncio
from collections.abc import Iterable
from typing import Final

from vq.broker.base.session import Session
from vq.broker.security.authority import Authority
from vq.broker.shared.ledger import ReceiveAsk
from vq.broker.shared.notes import Acquired
from vq.errors import Busy, InvalidRequest, VqError
from vq.security.rules import Need, Resource, Right

#: Members that wait at one journal.
WAITING_MAX: Final = 10_000


class WaitingMember:
    """A RECEIVE that waits. Its connection ends it, or another request of its member.

    Attributes:
        session, group, ask: Who asks, and what.
        wants: Equal for those who can get the same.
        got: What it gets; None: it has ended.
        got_ms: When it got that; see ``Now.ms``.
    """

    __slots__ = ("_authority", "ask", "got", "got_ms", "group", "session", "wants")

    def __init__(self, session: Session, group: str, ask: ReceiveAsk, authority: Authority) -> None:
        self._authority = authority
        self.session = session
        self.group = group
        self.ask = ask
        self.wants = hash((ask.open_max, ask.group_open_max, *(e.source for e in ask.told)))
        self.got_ms = 0
        self.got: asyncio.Future[Acquired | None] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self.session.waiting.pop(self, None)
        if not self.got.done():
            self.got.set_result(None)

    def look_at_rights(self) -> int:
        """See ``session.Revocable``: what it waits for would be nobody else's for its lease."""
        needs = [Need(Right.READ, Resource.GROUP, self.group)]
        needs += [
            Need(Right.READ, Resource.TOPIC, topic)
            for topic in dict.fromkeys(each.source.topic for each in self.ask.told)
        ]
        for need in needs:
            refusal = self._authority.refusal(self.session.principal, *need)
            if refusal is not None:
                self.fail(refusal)
                break
        return len(needs)

    def fail(self, error: VqError) -> None:
        """End it with an error, unless it has ended."""
        if not self.got.done():
            self.got.set_exception(error)
            self.got.exception()


class Receivers:
    """See the module. Loop-bound.

    Args:
        authority: Says whether members that wait may still receive.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._waiting: dict[str, dict[WaitingMember, None]] = {}  # by group, in their order
        self._members: dict[tuple[str, int], WaitingMember] = {}

    def __len__(self) -> int:
        return len(self._members)

    def wait(self, session: Session, group: str, ask: ReceiveAsk) -> WaitingMember:
        """Have a member wait; its earlier request ends.

        Raises:
            Busy: Too many wait.
            InvalidRequest: A later one waits: this one was long on its way.
        """
        before = self._members.get((group, ask.member))
        if before is not None and before.ask.attempt > ask.attempt:
            raise InvalidRequest(
                f"attempt {ask.attempt} of member {ask.member:#x}: attempt {before.ask.attempt} "
                "waits; attempts of a member rise"
            )
        self.end(group, ask.member)
        if len(self._members) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} members wait for messages of this journal; no more may")
        waiting = WaitingMember(session, group, ask, self._authority)
        session.waiting[waiting] = None
        self._members[group, ask.member] = waiting
        self._waiting.setdefault(group, {})[waiting] = None
        return waiting

    def end(self, group: str, member: int) -> None:
        """End the request of a member that waits, if there is one: it gets nothing."""
        before = self._members.get((group, member))
        if before is not None:
            before.cancel()
            self.leave(before)

    def leave(self, waiting: WaitingMember) -> None:
        """Give nothing to a member any more."""
        waiting.session.waiting.pop(waiting, None)
        key = waiting.group, waiting.ask.member
        if self._members.get(key) is waiting:
            del self._members[key]
        of_group = self._waiting.get(waiting.group, {})
        of_group.pop(waiting, None)
        if not of_group:
            self._waiting.pop(waiting.group, None)

    def groups(self) -> list[str]:
        """Return the groups whose members wait."""
        return list(self._waiting)

    def of(self, group: str) -> list[WaitingMember]:
        """Return the members of a group that wait, the one that has waited longest first.

        A member that has its answer, or reads none, is left out.
        """
        found: Iterable[WaitingMember] = self._waiting.get(group, ())
        return [each for each in found if not (each.got.done() or each.session.congested)]

    def close(self, error: VqError) -> None:
        """Refuse all that wait: another node leads."""
        for waiting in list(self._members.values()):
            self.leave(waiting)
            waiting.fail(error)
