"""The tables of the first console."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "vq_accounts",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("password_hash", sa.String(255)),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "vq_sessions",
        sa.Column("token_hash", sa.String(64), primary_key=True),
        sa.Column("account", sa.String(100), nullable=False, index=True),
        sa.Column("role", sa.String(20)),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "vq_audit",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("time_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("person", sa.String(100), nullable=False),
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("cluster", sa.String(100), nullable=False),
        sa.Column("act", sa.String(60), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("before", sa.Text, nullable=False),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
    )
    op.create_table(
        "vq_samples",
        sa.Column("cluster", sa.String(100), primary_key=True),
        sa.Column("series", sa.String(200), primary_key=True),
        sa.Column("step_s", sa.Integer, primary_key=True),
        sa.Column("time_s", sa.BigInteger, primary_key=True),
        sa.Column("mean", sa.Float, nullable=False),
        sa.Column("most", sa.Float, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
    )
    op.create_index("vq_samples_by_age", "vq_samples", ["step_s", "time_s"])
    op.create_table(
        "vq_masks",
        sa.Column("cluster", sa.String(100), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
    )
    op.create_table(
        "vq_plans",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(100), nullable=False, index=True),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.Column("person", sa.String(100), nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )
