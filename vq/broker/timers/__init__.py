"""Messages that are delivered later: kept, handed to their partitions in time, and recalled.

In here: what the master of a partition of the topic of delayed messages does with it. Not in here:
how they get there (the producer), and how logs are stored, copied and deleted (as all others).
"""
