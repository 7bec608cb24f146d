"""How many failed attempts to authenticate one address has: a bound on guessing passwords.

An address may fail ``BURST`` times at once and ``PER_S`` times a second for ever: clients behind
one address with an old password do not lock out the others, and a guesser gets nowhere. Addresses
of IPv6 count by their network: whoever has one has 2^64 of them.
"""

from typing import Final

from vq.broker.base.debts import Debts
from vq.errors import Busy
from vq.remoting.ports import counted_address

BURST: Final = 100
PER_S: Final = 10.0


class FailedAttempts:
    """The failures of each address; see the module's text.

    Attributes:
        failed: How many there were.
        refused: How many attempts were refused because of earlier ones.
    """

    def __init__(self) -> None:
        self.failed = 0
        self.refused = 0
        self._debts = Debts(PER_S)

    def check(self, address: str, now: float) -> None:
        """Return if an address may try.

        Raises:
            Busy: It has failed too often lately.
        """
        if self.are_too_many(address, now):
            self.refused += 1
            raise Busy(
                f"too many failed attempts to authenticate from {counted_address(address)}: at "
                f"most {PER_S:g} a second after the first {BURST}; try again later"
            )

    def are_too_many(self, address: str, now: float) -> bool:
        """Whether an address has failed too often lately."""
        return self._debts.of(counted_address(address), now) >= BURST

    def fail(self, address: str, now: float) -> None:
        """Note that an attempt of an address has failed."""
        self.failed += 1
        self._debts.owe(counted_address(address), 1, now)
