"""Who may do what.

In here: rules of access. Not in here: what a rule is, and what rules decide (``vq.security``).
"""
