"""Where the progress of a group is kept if not in ZooKeeper: an SQL database, or a local file.

In here: the port (``table``) and what stands behind it. Each call does its work before it returns,
and a thread of the member makes it. Not in here: claims and what ZooKeeper has of such a group
(``vq.client.consumer.group.outside_offsets``).
"""
