"""Where a member is in a partition that it holds: begun, compared, stopped, sought, paused.

In here: where a partition begins, whether its log still has the same messages there, what stops it,
and what an application does with it (seek, pause). Not in here: who may have the partition
(``group``), its bytes (``fetch``), and its messages (``deliver``).
"""
