"""The steps from the first schema to the newest one: nothing is lost, and the tables are those."""

from contextlib import closing
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from vq.console.database import migrations
from vq.console.database.database import Database
from vq.console.database.schema import metadata, plans, sessions


def test_the_tables_are_those_of_the_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'console.db'}"
    with closing(Database(url)) as database:
        database.upgrade()
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    assert differences == []


def test_what_the_first_schema_has_is_there_after_an_upgrade(tmp_path: Path) -> None:
    """Whoever is logged in stays so, and a plan that was kept is known by its id."""
    url = f"sqlite:///{tmp_path / 'console.db'}"
    engine = sqlalchemy.create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in (
            "INSERT INTO vq_accounts VALUES ('anna', 'admin', NULL, 0, 5, 7)",
            "INSERT INTO vq_sessions VALUES ('h', 'anna', NULL, 'c', '::1', 6, 6)",
            "INSERT INTO vq_plans VALUES (1, 'c', 9, 'anna', '{\"id\": \"p-1\"}', 'draft', '')",
            "INSERT INTO vq_plans VALUES (2, 'c', 9, 'anna', 'cut', 'draft', '')",
        ):
            connection.execute(sqlalchemy.text(statement.replace(":", "\\:")))
    engine.dispose()
    with closing(Database(url)) as database:
        database.upgrade()

        def look(connection: sqlalchemy.Connection) -> tuple[list[object], list[object]]:
            changed = sqlalchemy.select(sessions.c.account_changed_ms)
            names = sqlalchemy.select(plans.c.plan_id).order_by(plans.c.id)
            return (
                list(connection.execute(changed).scalars()),
                list(connection.execute(names).scalars()),
            )

        assert database.run_here(look) == ([7], ["p-1", None])
