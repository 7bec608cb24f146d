"""The log on disk: records, batches, blocks, recovery. Synchronous code that knows no event loop."""
