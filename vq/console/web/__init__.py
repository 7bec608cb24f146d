"""What every page is made of: who asks, security, languages, tables, rendering.

Not here: the pages themselves, and what they show.
"""
