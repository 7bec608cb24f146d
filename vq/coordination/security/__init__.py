"""Users, rules of access and quotas in ZooKeeper.

In here: the transactions that change them, and reading them. Not in here: what a broker makes of
them (``vq.broker.security``), and pure decisions (``vq.security``).
"""
