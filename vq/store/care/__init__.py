"""Reading stored bytes as a whole: verifying, repairing, comparing, searching.

In here: what looks at any range of a log that is open, in steps beside other work, and the key
indexes that spare it reading. Not in here: when that is done (``vq.broker.health``).
"""
