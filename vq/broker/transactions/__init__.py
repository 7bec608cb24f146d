"""Transactions: messages that wait in a journal until it is decided, for all of them at once.

In here: what the master of a partition of the journal does with them. Not in here: how producers
collect them, and how what was decided gets to its partitions (``journal``).
"""
