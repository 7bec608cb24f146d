"""Which partition a message goes to: by key, by the application, or spread over those that take it.

In here: the strategies, the ways to deal out messages, and what steers them (published load, full
disks). Not in here: the queues of the partitions (``queue``).
"""
