"""Who may do what.

In here: users, rules of access. Not in here: what a password proves, and what rules decide
(``vq.security``).
"""
