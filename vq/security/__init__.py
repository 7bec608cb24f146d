"""Who asks, what it may do, and how nobody else reads along: decisions without sockets.

In here: TLS from files (``tls``). Not in here: connections (``remoting``), what ZooKeeper keeps of
users and rules (``coordination``), the door of a broker (``broker.serving``).
"""
