"""Giving topics to broker groups by measured load.

In here: what partitions and groups get and store (``measuring``), goals, the score and the advisor
(pure), a plan as a value and as JSON, and carrying a plan out (``applying``). Not in here: how one
partition moves; see ``partitions.placements``.
"""
