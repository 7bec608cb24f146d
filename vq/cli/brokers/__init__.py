"""``vq broker`` and ``standalone``, and the commands of ``vq cluster`` about one broker group.

In here: running brokers, draining and removing them, and what an operator does when a group is in
need. Not in here: the status of all (``cluster``).
"""
