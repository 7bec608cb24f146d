"""``vq local``.

In here: commands about a queue inside one process. Not in here: the queue (``vq.local``).
"""
