"""Where partitions lie, and which offsets they hold.

In here: moving them, and counting between offsets. Not in here: what is stored in them
(``messages``).
"""
