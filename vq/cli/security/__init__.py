"""Commands about who may do what.

In here: rules of access. Not in here: accounts of the web console (``console``).
"""
