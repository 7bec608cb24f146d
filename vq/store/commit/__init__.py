"""Group commit: one flush for all logs that have something to make durable.

In here: which logs are dirty, the thread that syncs them, and whether one file system is synced at
once or file by file. Not in here: what a log syncs (``log``), and who waits for it: a broker's
channels, with their copies and epochs, are told of an end and do the rest themselves.
"""
