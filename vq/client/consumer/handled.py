"""What a member handled in a partition that it lost, and whether it goes on there.

Pure. A session that ends takes the claims with it, and what was handled since the last commit
cannot be committed any more: the fence is another one. If the same member claims the partition
again, and nobody committed meanwhile, it goes on behind what it handled. Otherwise the committed
offset counts: a successor that went on from there, or a reset, has the last word.
"""

from dataclasses import dataclass

from vq.client.consumer.delivery import Progress
from vq.coordination.claims import Claim
from vq.coordination.paths import CommittedOffset


@dataclass(frozen=True, slots=True)
class Handled:
    """What is kept of a lost partition.

    Attributes:
        claim: The claim that was lost, with the last commit that is known to be written.
        attempted: The commit that was tried last; its answer may have been lost with the session.
        progress: How far the listener came.
    """

    claim: Claim
    attempted: CommittedOffset | None
    progress: Progress


def go_on_at(claim: Claim, committed: CommittedOffset, kept: Handled | None) -> Progress:
    """Return where a partition that was just claimed goes on.

    A commit is recognised by its value and by the version of its node: somebody else's has another
    member, another time, or both, and a node that was made anew has another version.
    """
    begin = Progress(committed.offset, committed.message_id, committed.epoch)
    if kept is None or committed.stopped or kept.progress.position < committed.offset:
        return begin
    before = kept.claim.offset_version
    after = 0 if before is None else before + 1
    found = (committed, claim.offset_version)
    is_ours = found in ((kept.claim.committed, before), (kept.attempted, after))
    return kept.progress if is_ours else begin
