"""One partition on this node: its channel and its log, from a PUT to the acknowledgement.

In here: which channels exist, the table of a partition's states, the checks of a batch, group
commit, and what its closed blocks tell. Not in here: copies on other nodes (``replication``), what
clients ask (``serving``), and when blocks are archived or deleted (``history``).
"""
