"""Topics in ZooKeeper: made, placed, changed, deleted and removed.

In here: also the routes that clients keep of them, and what holds for all topics of a cluster. Not
in here: what a broker does with a partition that is placed on it (``vq.broker.partition``).
"""
