"""From fetched bytes to the application: messages, who is at them, and how far they are handled.

In here: the delivery of one partition, its window, what becomes of a message that failed, the
threads, tasks and the inbox that are at messages, and how long they may be. Not in here: where the
bytes come from (``fetch``), and who may have the partition (``group``).
"""
