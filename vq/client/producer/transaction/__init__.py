"""Transactions of a producer: messages that are collected, and sent together or not at all.

In here: what is collected, and the requests to the journal. Not in here: what the broker does with
them (``broker/transactions``), and how an application begins and ends one (``blocking``, ``aio``).
"""
