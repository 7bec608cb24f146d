"""One partition on this node: its channel and its log, from a PUT to the acknowledgement.

In here: which channels exist, the table of a partition's states, the checks of a batch, who waits
for a flush, and what its closed blocks tell. Not in here: group commit (``vq.store.commit``), other
nodes' copies (``replication``), what clients ask (``serving``), and when blocks are archived or
deleted (``history``).
"""
