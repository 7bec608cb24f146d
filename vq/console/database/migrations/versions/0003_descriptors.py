"""Descriptor sets of protobuf, and the types of the messages of topics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"


def _string(chars: int) -> sa.String:
    exact = mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(chars).with_variant(exact, "mysql", "mariadb")


_TEXT = sa.Text().with_variant(
    mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "vq_descriptors",
        sa.Column("cluster", _string(100), primary_key=True),
        sa.Column("name", _string(200), primary_key=True),
        sa.Column("time_ms", sa.BigInteger, nullable=False),
        sa.Column("person", _string(100), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("types", sa.Integer, nullable=False),
        sa.Column("data", _BYTES, nullable=False),
    )
    op.create_table(
        "vq_topic_types",
        sa.Column("cluster", _string(100), primary_key=True),
        sa.Column("topic", _string(249), primary_key=True),
        sa.Column("descriptors", _string(200), nullable=False),
        sa.Column("type", _TEXT, nullable=False),
    )
