"""Master and copies of a broker group: who leads, who is in sync, what a copy fetches.

In here: claiming, leases, epochs, following a master, and handing over to another. Not in here:
the records of all that in ZooKeeper (``vq.coordination.brokers``), and repairing what differs
(``health``).
"""
