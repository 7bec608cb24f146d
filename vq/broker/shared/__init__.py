"""Shared groups: which message is with which member, until when, and how often it was delivered.

In here: what the master of a partition of the topic of shared groups does with it. Not in here: the
messages themselves, which members read from their partitions (``client``).
"""
