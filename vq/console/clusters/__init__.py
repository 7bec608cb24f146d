"""The clusters that a console shows, what the last looks at them found, and what was measured.

Not here: acts on them; those go through ``acts``.
"""
