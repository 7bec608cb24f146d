"""The bytes of held partitions, read ahead: from whom, how many at a time, in how much memory.

In here: the fetcher of each partition, the fetch sessions that it shares with others, the buffer
space. Not in here: records and messages (``deliver``), and reads without a group
(``client.reading``).
"""
