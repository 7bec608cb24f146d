"""Commands about who may do what.

In here: users, rules of access. Not in here: accounts of the web console (``console``).
"""
