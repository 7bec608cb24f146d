"""The archive.

In here: its runs, and the archives that nodes have. Not in here: making one
(``vq.broker.history``).
"""
