"""Files on a disk, behind a port with a twin in memory.

In here: opening, writing, flushing, renaming, and what a file system can do. Not in here: what
is in a file.
"""
