"""What clients and other brokers ask over connections: admitted, dispatched, answered.

In here: the server, bounds of connections, and a module for each kind of request. Not in here: the
bytes of the wire (``vq.remoting``), and how a batch is stored (``partition``).
"""
