"""The stamps of one queue's batches: producer id, epoch and sequence.

The broker appends a batch only if its sequence follows the last one of the same producer id and
epoch. A new epoch begins its sequences at 0, and the broker then refuses copies of earlier epochs.
Epochs are 16 bits. Long before the last one the queue takes a new producer id, which it may do only
while no batch is in flight and the broker refuses all copies of earlier ones.

With an identity of the application (``ProducerConfig.identity``), id and epoch are fixed: other
epochs of the id belong to other producers. The queue then ends where it would change them.
"""

from collections.abc import Callable

from vq.limits import PRODUCER_EPOCH_MAX
from vq.model import ProducerIdentity, ProducerStamp

#: From this epoch on the queue takes a new producer id as soon as it is safe.
RENEW_EPOCH = PRODUCER_EPOCH_MAX // 2


class Stamps:
    """Numbers the batches of one queue; only its owner uses it.

    Attributes:
        sequence: Of the next new batch.
        may_be_copied: The broker may still store a copy of an earlier epoch's batch.
        fixed: The application chose id and epoch, which stay.
    """

    __slots__ = ("_epoch", "_new_id", "_producer_id", "fixed", "may_be_copied", "sequence")

    def __init__(
        self, new_producer_id: Callable[[], int], identity: ProducerIdentity | None = None
    ) -> None:
        self._new_id = new_producer_id
        self.fixed = identity is not None
        self._producer_id, self._epoch = identity or (new_producer_id(), 0)
        self.sequence = 0
        self.may_be_copied = False

    @property
    def is_renewal_due(self) -> bool:
        """Whether epochs are to end soon: the queue shall take a new producer id."""
        return self._epoch >= RENEW_EPOCH and not self.fixed

    def stamp(self, sequence: int) -> ProducerStamp:
        """Return the stamp of a batch under the present id and epoch."""
        return ProducerStamp(self._producer_id, self._epoch, sequence)

    def renew(self) -> None:
        """Take a new producer id; the broker must not be able to store a copy of any batch."""
        self._producer_id = self._new_id()
        self._epoch = self.sequence = 0
        self.may_be_copied = False

    def next_epoch(self, *, in_doubt: bool) -> None:
        """Begin the next epoch.

        Args:
            in_doubt: The broker may still store a copy of a batch of an earlier epoch.
        """
        assert not self.fixed
        self.may_be_copied = self.may_be_copied or in_doubt
        if self._epoch < PRODUCER_EPOCH_MAX:
            self._epoch += 1
            self.sequence = 0
        else:  # nothing was stored since the renewal was due: the gap keeps out old copies
            self.renew()
