"""``vq cluster`` and ``vq doctor``.

In here: the status and the settings of the whole, and its checks. Not in here: what concerns one
broker group (``brokers``).
"""
