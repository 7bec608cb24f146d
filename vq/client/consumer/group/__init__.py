"""A member in its group: which partitions it holds, and how each of them comes and goes.

In here: rounds, claims, commits, hand-overs, the states of a hold. Not in here: the plan that all
members compute (``coordination.groups``), where a partition begins and what stops it (``place``),
its bytes (``fetch``), and its messages (``deliver``).
"""
