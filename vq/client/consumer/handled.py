"""What a member handled in a partition that it lost, and whether it goes on there.

Pure. A session that ends takes the claims with it, and what was handled since the last commit
cannot be committed any more: the fence is another one. If the same member claims the partition
again, and nobody committed meanwhile, it goes on behind what it handled, or where its application
sought. Otherwise the committed offset counts: a successor that went on from there, or a reset, has
the last word.
"""

from dataclasses import dataclass

from vq.client.consumer.delivery import Progress
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.values.consumers import CommittedOffset


@dataclass(frozen=True, slots=True)
class Handled:
    """What is kept of a lost partition.

    Attributes:
        claim: The claim that was lost, with the last commit that is known to be written.
        attempted: Later commits; one of them may have been written, its answer was lost.
        progress: How far the listener came, or the place that was sought since.
    """

    claim: Claim
    attempted: tuple[CommittedOffset, ...]
    progress: Progress


def go_on_at(claim: Claim, committed: CommittedOffset, kept: Handled | None) -> Progress:
    """Return where a partition that was just claimed goes on.

    A commit is recognised by its value and by the version of its node: somebody else's has another
    member, another time, or both, and a node that was made anew has another version. The place may
    be before the committed offset: the application has sought back.
    """
    begin = Progress(committed.offset, committed.message_id, committed.epoch)
    if kept is None or committed.stopped or claim.offset_version is None:
        return begin
    before = -1 if kept.claim.offset_version is None else kept.claim.offset_version
    is_known = committed == kept.claim.committed and claim.offset_version == before
    is_tried = committed in kept.attempted and claim.offset_version > before
    return kept.progress if is_known or is_tried else begin
