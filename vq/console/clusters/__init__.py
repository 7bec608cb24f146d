"""The clusters that a console shows.

In here: what the last looks at them found, and what was measured. Not in here: acts on them
(``acts``).
"""
