"""A topic and its partitions between acceptance and outcome: it decides and does no I/O.

In here: the list that a topic's messages are appended to, the queue of each partition, its batches
and their numbers. Not in here: connections, timers and threads (``send``).
"""
