"""One module for each step, in the order of their numbers.

In here: what has changed. Not in here: steps back.
"""
