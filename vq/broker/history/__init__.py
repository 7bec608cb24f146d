"""What becomes of old blocks and old topics: deleted, archived, indexed, removed.

In here: when that is due, and doing it in the background. Not in here: what is due, where a pure
function of the store says it (``vq.store.log.retention``), and how one block is archived
(``logs.archiving``).
"""
