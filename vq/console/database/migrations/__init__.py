"""The steps from one schema of the console's database to the next, for Alembic.

In here: how they run. Not in here: the schema that they lead to (``schema``).
"""
