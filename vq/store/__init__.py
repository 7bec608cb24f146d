"""The log on disk: records, batches, blocks, recovery, group commit.

Synchronous; only group commit (``commit``) knows an event loop.
"""
