"""Who may do what: pure decisions about credentials, certificates and rules.

In here: exchanges that prove an identity, what is stored of a user, and rules of access. Not in
here: sockets, ZooKeeper, and where a broker asks (``vq.broker.security``).
"""
