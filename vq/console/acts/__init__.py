"""The one door to operations.

In here: who may do what; acts are written down before they begin, and after. Not in here: what
operations do (``vq.operations``).
"""
