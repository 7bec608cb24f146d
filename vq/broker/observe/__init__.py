"""What a node tells of itself: metrics, health checks, its status, the load that it publishes.

In here: reading what other rooms count. Not in here: counting it, and deciding anything.
"""
