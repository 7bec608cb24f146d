"""The data directories of a node: how full they are, when they will be full, if they answer.

In here: measuring a disk and saying what it takes. Not in here: reading and writing files
(``vq.store.disk``), and making room (``history``).
"""
