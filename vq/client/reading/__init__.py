"""Reading partitions by position: where the bytes are, how they are had, and taken apart.

In here: the one reader of a partition (``partition_reader``), what it needs (which node, what to do
about damage, archives that the client opens), and what takes bytes apart. The group's fetcher asks
for many partitions at once; it shares the nodes, the damage policy and the decoder. Not in here:
groups, listeners, and what a caller does with what was read.
"""
