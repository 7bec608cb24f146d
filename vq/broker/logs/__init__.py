"""The logs of all partitions of a node: which there are, and every change of their files.

In here: the channels that ZooKeeper says a node has, opening, moving, cutting, archiving and
closing their logs, and the pass over their old blocks. Not in here: what one channel does with its
log (``partition``), when blocks are archived or deleted (``history``), and the files themselves
(``vq.store``).
"""
