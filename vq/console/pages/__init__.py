"""The pages: one module for each, with its functions.

In here: what a page asks of the door, and shows. Not in here: what pages have in common (``web``).
"""
