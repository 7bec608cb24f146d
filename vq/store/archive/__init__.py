"""A closed block in a zip of chunks: written, found again, read through a cache; here or at a URL.

In here: the file's format and the places where it may lie. Not in here: which blocks are archived,
and when (``vq.broker.history``).
"""
