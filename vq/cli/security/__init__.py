"""Commands about who may do what.

In here: users. Not in here: accounts of the web console (``console``).
"""
