"""``vq archive``.

In here: its commands, and the files that it exports. Not in here: the archive itself
(``vq.operations.archives``).
"""
