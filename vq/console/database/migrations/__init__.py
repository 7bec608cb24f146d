"""The steps from one schema of the console's database to the next, for Alembic."""
