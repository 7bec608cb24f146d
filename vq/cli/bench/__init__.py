"""``vq bench``.

In here: what is measured, and the processes that work meanwhile. Not in here: the benchmark of the
project (``bench/``).
"""
