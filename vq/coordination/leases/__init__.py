"""What one of many does at a time, and says so in ZooKeeper: leases, runs, slots, writes of jobs.

In here: the records of these. Not in here: what is done under them.
"""
