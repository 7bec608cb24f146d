"""Stored messages, read without a group.

In here: as bytes, as columns, in their order, found, checked; repeatable writes. Not in here:
reading as a member of a group (``vq.client.consumer``).
"""
