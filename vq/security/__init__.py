"""Who may do what: pure decisions about credentials, certificates and rules.

In here: exchanges that prove an identity, and what is stored of a user. Not in here: sockets,
ZooKeeper, and where a broker asks.
"""
