"""From fetched bytes to the application: who handles messages, and how far they are handled.

In here: the delivery of one partition, its window, what becomes of a message that failed, the
threads, tasks and the inbox that handle messages, and how long that may take. Not in here: where
the bytes come from (``fetch``), and who may have the partition (``group``).
"""
