"""What clients and other brokers ask: dispatched, and answered.

In here: the door of all requests, and a module for each kind of them. Not in here: connections and
their bounds (``vq.broker.connections``), the bytes of the wire (``vq.remoting``), and how a batch
is stored (``partition``).
"""
