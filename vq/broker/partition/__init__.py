"""One partition on this node: its channel, from a PUT to the acknowledgement.

In here: the table of a partition's states, the checks of a batch, who waits for a flush, what the
other nodes have of it, and where readers stop. Not in here: which channels exist, and the files of
their logs (``logs``), group commit (``vq.store.commit``), the reading of other nodes' copies
(``replication``), and what clients ask (``serving``).
"""
