"""Who may do what: values and decisions.

In here: pure functions and values. Not in here: sockets, ZooKeeper, and what a broker remembers of
them (``vq.broker.security``).
"""
