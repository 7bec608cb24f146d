"""The cluster's tree in ZooKeeper as a whole: checked, repaired, exported, imported.

In here: which nodes there may be, what must hold among them, and copies of the tree. Not in here:
the meaning of a single node (``vq.coordination``), and definitions that another cluster takes
(``cluster.definitions``).
"""
