"""What Alembic runs: the steps, on the connection that ``Database.upgrade`` gives."""

from alembic import context

from vq.console.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="alembic_version",
)
with context.begin_transaction():
    context.run_migrations()
