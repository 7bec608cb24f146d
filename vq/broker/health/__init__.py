"""Looking for damage in what is stored, and mending it from another copy.

In here: when a log is read for that, and what follows. Not in here: how bytes are verified and put
back (``vq.store.care``), and damage that a reader meets (``serving``).
"""
