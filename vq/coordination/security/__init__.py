"""What ZooKeeper has about access.

In here: reading and changing it. Not in here: what it decides (``vq.security``), and what a broker
remembers of it (``vq.broker.security``).
"""
