"""For development and demonstrations: ZooKeeper and brokers as child processes."""
