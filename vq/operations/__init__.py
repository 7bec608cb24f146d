"""What an administrator asks and changes: a room for each subject, and the table of operations.

An operation is a coroutine function whose first argument is the cluster; it takes and returns
plain values. In here: what is asked of ZooKeeper and of brokers, and what follows from the answers.
Not in here: how a command shows it (``vq.cli``), how a thread waits for it (``vq.blocking``).
``vq.admin`` has the names of the values that programs use.
"""
