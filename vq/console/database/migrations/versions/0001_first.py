"""The tables of the first console."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _string(chars: int) -> sa.String:
    """Return a type that tells capitals apart: MariaDB's own does not, and names of vq do."""
    exact = mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(chars).with_variant(exact, "mysql", "mariadb")


#: MariaDB's own TEXT ends at 64 KiB.
_TEXT = sa.Text().with_variant(
    mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "vq_accounts",
        sa.Column("name", _string(100), primary_key=True),
        sa.Column("role", _string(20), nullable=False),
        sa.Column("password_hash", _string(255)),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "vq_sessions",
        sa.Column("token_hash", _string(64), primary_key=True),
        sa.Column("account", _string(100), nullable=False, index=True),
        sa.Column("role", _string(20)),
        sa.Column("csrf", _string(64), nullable=False),
        sa.Column("address", _string(100), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "vq_audit",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("time_ms", sa.BigInteger, nullable=False, index=True),
        sa.Column("person", _string(100), nullable=False),
        sa.Column("address", _string(100), nullable=False),
        sa.Column("cluster", _string(100), nullable=False),
        sa.Column("act", _string(60), nullable=False),
        sa.Column("subject", _string(255), nullable=False),
        sa.Column("arguments", _TEXT, nullable=False),
        sa.Column("before", _TEXT, nullable=False),
        sa.Column("after", _TEXT, nullable=False),
        sa.Column("outcome", _string(20), nullable=False),
        sa.Column("error", _TEXT, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
    )
    op.create_table(
        "vq_samples",
        sa.Column("cluster", _string(100), primary_key=True),
        sa.Column("series", _string(200), primary_key=True),
        sa.Column("step_s", sa.Integer, primary_key=True),
        sa.Column("time_s", sa.BigInteger, primary_key=True),
        sa.Column("mean", sa.Float, nullable=False),
        sa.Column("most", sa.Float, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
    )
    op.create_index("vq_samples_by_age", "vq_samples", ["step_s", "time_s"])
    op.create_table(
        "vq_masks",
        sa.Column("cluster", _string(100), primary_key=True),
        sa.Column("topic", _string(249), primary_key=True),
    )
    op.create_table(
        "vq_plans",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("cluster", _string(100), nullable=False, index=True),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.Column("person", _string(100), nullable=False),
        sa.Column("plan", _TEXT, nullable=False),
        sa.Column("state", _string(20), nullable=False),
        sa.Column("outcome", _TEXT, nullable=False),
    )
