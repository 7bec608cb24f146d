"""The log on disk: records, batches, blocks, recovery. Synchronous; knows no event loop."""
