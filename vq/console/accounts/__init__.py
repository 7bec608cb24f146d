"""Accounts of people.

In here: who may log in, as what, and since when. Not in here: what a role may do (``acts``).
"""
