"""Connections to a broker: which are admitted, whose turn it is, and what strangers owe.

In here: the server, the session of a connection, bounds, debts, quotas, and ends of users. Not in
here: what a request does (``vq.broker.serving``), and the bytes of the wire (``vq.remoting``).
"""
