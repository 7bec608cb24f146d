"""How many failed attempts to authenticate one address has: a bound on guessing passwords.

An address may fail ``BURST`` times at once and ``PER_S`` times a second for ever: clients behind
one address with an old password do not lock out the others, and a guesser gets nowhere.
"""

from collections import OrderedDict
from typing import Final

from vq.errors import Busy

BURST: Final = 100
PER_S: Final = 10.0
#: Addresses remembered; the one that failed least recently is forgotten first.
ADDRESSES_MAX: Final = 4_096


class FailedAttempts:
    """The failures of each address; see the module's text.

    Attributes:
        failed: How many there were.
        refused: How many attempts were refused because of earlier ones.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.refused = 0
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, and when

    def check(self, address: str, now: float) -> None:
        """Return if an address may try.

        Raises:
            Busy: It has failed too often lately.
        """
        if self._debt(address, now) >= BURST:
            self.refused += 1
            raise Busy(
                f"too many failed attempts to authenticate from {address}: at most {PER_S:g} a "
                f"second after the first {BURST}; try again later"
            )

    def fail(self, address: str, now: float) -> None:
        """Note that an attempt of an address has failed."""
        self.failed += 1
        self._debts[address] = (self._debt(address, now) + 1, now)
        self._debts.move_to_end(address)
        if len(self._debts) > ADDRESSES_MAX:
            self._debts.popitem(last=False)

    def _debt(self, address: str, now: float) -> float:
        debt, at = self._debts.get(address, (0.0, now))
        return max(0.0, debt - (now - at) * PER_S)
