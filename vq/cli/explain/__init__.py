"""``vq explain``.

In here: how answers are shown. Not in here: the answers (``vq.operations.explain``).
"""
