"""Who asks, what it may do and how much, how nobody reads along: decisions without sockets.

In here: exchanges that prove an identity, what is stored of a user, rules of access, quotas, TLS
from files (``tls``), and secrets in files. Not in here: connections (``remoting``), what ZooKeeper
keeps of users, rules and quotas (``coordination.security``), and where a broker asks
(``broker.security``).
"""
