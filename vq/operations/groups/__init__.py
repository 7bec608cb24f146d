"""Consumer groups.

In here: who is in them, how far behind they are, and setting where they go on. Not in here: what
members do themselves (``vq.client.consumer``).
"""
