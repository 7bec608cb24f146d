"""vq: a durable, partitioned message queue coordinated through ZooKeeper."""

__version__ = "0.1.0"
