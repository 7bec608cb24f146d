"""Who may do what, and how much.

In here: users, rules of access, quotas. Not in here: what a password proves, and what rules decide
(``vq.security``).
"""
