"""Agreement through ZooKeeper: the tree, sessions, routes, allocation, consumer groups."""
