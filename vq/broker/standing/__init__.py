"""How a node stands in its group: leads, follows, hands over; and what it refuses as a whole.

In here: the tables of a node's states, the epoch and the nodes that a state is about, the lease.
Not in here: what brings one state about (``replication``), and what one partition refuses
(``partition``).
"""
