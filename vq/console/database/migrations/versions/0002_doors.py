"""Tokens of programs; sessions that end with a change of their account; plans by their ids."""

import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"


def _string(chars: int) -> sa.String:
    """Return a type that tells capitals apart: MariaDB's own does not, and names of vq do."""
    exact = mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(chars).with_variant(exact, "mysql", "mariadb")


def upgrade() -> None:
    """Make and widen the tables, and fill in what is known."""
    op.create_table(
        "vq_tokens",
        sa.Column("digest", _string(64), primary_key=True),
        sa.Column("account", _string(100), nullable=False, index=True),
        sa.Column("name", _string(100), nullable=False),
        sa.Column("role", _string(20), nullable=False),
        sa.Column("made_by", _string(100), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger),
        sa.UniqueConstraint("account", "name", name="vq_tokens_by_name"),
    )
    op.add_column("vq_audit", sa.Column("token", _string(100)))
    op.add_column("vq_sessions", sa.Column("account_changed_ms", sa.BigInteger))
    op.add_column("vq_plans", sa.Column("plan_id", _string(100)))
    op.create_index("ix_vq_plans_plan_id", "vq_plans", ["plan_id"])
    op.execute(
        "UPDATE vq_sessions SET account_changed_ms = "
        "(SELECT changed_ms FROM vq_accounts WHERE vq_accounts.name = vq_sessions.account)"
    )
    _name_plans()


def _name_plans() -> None:
    connection = op.get_bind()
    table = sa.table("vq_plans", sa.column("id"), sa.column("plan_id"), sa.column("plan"))
    for number in [each.id for each in connection.execute(sa.select(table.c.id))]:
        of = table.c.id == number
        text = connection.execute(sa.select(table.c.plan).where(of)).scalar()
        try:
            name = str(json.loads(text or "")["id"])[:100]
        except (ValueError, TypeError, KeyError):
            continue  # it stays without a name, and can be looked at
        connection.execute(sa.update(table).where(of).values(plan_id=name))
