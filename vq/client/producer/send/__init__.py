"""From the queues to the brokers and back: the sender on the loop and the threads that lead.

In here: connections, deadlines, silent brokers, and the log lines of messages that nobody hears of.
Not in here: what an answer means for later batches (``queue``).
"""
