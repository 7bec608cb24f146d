"""Broker groups and their nodes in ZooKeeper: registration, leadership, the set in sync, loads.

In here: the records and the rules of their changes. Not in here: what a broker does when they
change (``vq.broker.replication``).
"""
