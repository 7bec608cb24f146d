"""A member in its group: which partitions it holds, and how each of them comes and goes.

In here: rounds, claims, commits, hand-overs, the states of a hold, and what an application does
with what it holds (seek, pause). Not in here: the plan that all members compute
(``coordination.groups``), the bytes of a partition (``fetch``), and its messages (``deliver``).
"""
