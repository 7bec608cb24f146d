"""What is owed, of anything that is bounded by who brings it; it is paid back at a rate. Pure.

A debtor is an address, or a user at one. An address is here what ``remoting.ports.counted_address``
makes of one: a network, for IPv6.
"""

from collections import OrderedDict
from typing import Final

#: Debtors remembered; the one that owed something new least recently is forgotten first.
DEBTORS_MAX: Final = 4_096


class Debts:
    """The debts of all.

    Args:
        per_s: So much of a debt is paid back in a second.
        most: A debt grows no higher.
    """

    def __init__(self, per_s: float, most: float = float("inf")) -> None:
        self._per_s = per_s
        self._most = most
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how much, and when

    def owe(self, debtor: str, amount: float, now: float) -> float:
        """Note that somebody owes more, or less; return what it owes now.

        Args:
            debtor: See the module's text.
            amount: Below 0: what was owed for nothing is given back.
            now: A monotonic time in seconds.
        """
        debt = max(0.0, min(self.of(debtor, now) + amount, self._most))
        self._debts[debtor] = (debt, now)
        self._debts.move_to_end(debtor)
        if len(self._debts) > DEBTORS_MAX:
            self._debts.popitem(last=False)
        return debt

    def of(self, debtor: str, now: float) -> float:
        """Return what a debtor owes."""
        debt, at = self._debts.get(debtor, (0.0, now))
        return max(0.0, debt - (now - at) * self._per_s)
