"""``vq group`` and ``vq lag-exporter``.

In here: how members and lag are shown. Not in here: groups of brokers (``brokers``).
"""
