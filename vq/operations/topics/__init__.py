"""Topics as a whole.

In here: making, changing, closing, draining, deleting and verifying them. Not in here: one
partition and its place (``partitions``).
"""
