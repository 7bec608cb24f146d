"""The log of one partition: appending, flushing, reading, deleting, and opening it after a crash.

In here: blocks, checkpoint, manifest, recovery, and the pure rules of retention. Not in here: the
directories that logs lie in (``directory``), flushing many logs at once (``commit``), and reading a
log as a whole (``care``).
"""
