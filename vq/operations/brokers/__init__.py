"""Brokers and their groups.

In here: how they are, who leads, draining, removing, what they had to cut. Not in here: the
partitions on them (``partitions``), and checks of the whole cluster (``cluster``).
"""
