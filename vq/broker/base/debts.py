"""What addresses owe, of anything that is bounded by address: it is paid back at a rate. Pure.

An address is here what ``remoting.ports.counted_address`` makes of one: a network, for IPv6.
"""

from collections import OrderedDict
from typing import Final

__all__ = ["Debts"]

#: Addresses remembered; the one that owed something new least recently is forgotten first.
ADDRESSES_MAX: Final = 4_096


class Debts:
    """The debts of all addresses.

    Args:
        per_s: So much of a debt is paid back in a second.
        most: A debt grows no higher.
    """

    def __init__(self, per_s: float, most: float = float("inf")) -> None:
        self._per_s = per_s
        self._most = most
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how much, and when

    def owe(self, address: str, amount: float, now: float) -> float:
        """Note that an address owes more; return what it owes now, a monotonic time in seconds."""
        debt = min(self.of(address, now) + amount, self._most)
        self._debts[address] = (debt, now)
        self._debts.move_to_end(address)
        if len(self._debts) > ADDRESSES_MAX:
            self._debts.popitem(last=False)
        return debt

    def of(self, address: str, now: float) -> float:
        """Return what an address owes."""
        debt, at = self._debts.get(address, (0.0, now))
        return max(0.0, debt - (now - at) * self._per_s)
