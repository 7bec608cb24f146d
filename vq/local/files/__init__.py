"""The files of a local queue: a log for each lane, one of completions, a snapshot, two pads.

In here: their bytes, reading and writing, damage, and what a restart finds. Not in here: the logs
themselves (``vq.store``), and when something is flushed (``core``).
"""
