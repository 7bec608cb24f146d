"""The client of ZooKeeper behind the port of ``tree``: what speaks kazoo's language.

In here: sessions and threads of kazoo, its answers, reads of many nodes in one request, ACLs, names
of servers, and what a server says of itself. Not in here: what any coordinator can do (``tree``).
"""
