"""Who may do what.

In here: users. Not in here: what a password proves (``vq.security``).
"""
