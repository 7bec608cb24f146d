"""The tree in ZooKeeper as such: the port to it, paths, and the values of its nodes.

In here: reading many nodes, mirroring those below one, changing one by compare-and-set, removing
all below one, keeping one of this process; the twin of the port in memory. Not in here: the client
of ZooKeeper (``zookeeper``); what a change means for topics, brokers, groups or leases.
"""
