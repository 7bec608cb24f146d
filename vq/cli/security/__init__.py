"""Commands about who may do what, and how much.

In here: users, rules of access, quotas. Not in here: accounts of the web console (``console``).
"""
