"""Who somebody is, and who may do what: pure decisions about credentials and rules.

In here: exchanges that prove an identity, what is stored of a user, rules of access. Not in here:
sockets, ZooKeeper, and where a broker asks.
"""
