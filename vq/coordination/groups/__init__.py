"""Consumer groups in ZooKeeper: members, shares, claims with their generations, committed offsets.

In here: the transactions and the pure rules of sharing out. Not in here: what a consumer does
meanwhile (``vq.client.consumer``).
"""
