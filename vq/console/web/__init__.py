"""What every page is made of.

In here: who asks, security, languages, tables, rendering. Not in here: the pages themselves.
"""
