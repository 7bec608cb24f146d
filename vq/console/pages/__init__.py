"""The pages: one module for each, with its functions. A function asks the door, and shows.

Not here: what pages have in common; that is in ``web``.
"""
