"""The tables of the console. A change here needs a migration beside it; a test compares them."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata: Final = MetaData()
#: An id that counts up. SQLite counts only what it calls INTEGER.
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")

accounts: Final = Table(
    "vq_accounts",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("password_hash", String(255)),  # None: logs in with a provider of identities
    Column("disabled", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
)

sessions: Final = Table(
    "vq_sessions",
    metadata,
    Column("token_hash", String(64), primary_key=True),  # SHA-256 of what the browser has
    Column("account", String(100), nullable=False, index=True),
    Column("role", String(20)),  # from a provider of identities; None: that of the account
    Column("csrf", String(64), nullable=False),
    Column("address", String(100), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger, nullable=False),
)

audit: Final = Table(
    "vq_audit",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("time_ms", BigInteger, nullable=False, index=True),
    Column("person", String(100), nullable=False),
    Column("address", String(100), nullable=False),
    Column("cluster", String(100), nullable=False),
    Column("act", String(60), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("arguments", Text, nullable=False),  # JSON
    Column("before", Text, nullable=False),  # JSON; "": not known
    Column("after", Text, nullable=False),  # JSON of the result
    Column("outcome", String(20), nullable=False),  # begun, done, failed, unknown
    Column("error", Text, nullable=False),
    Column("ended_ms", BigInteger),
)

samples: Final = Table(
    "vq_samples",
    metadata,
    Column("cluster", String(100), primary_key=True),
    Column("series", String(200), primary_key=True),  # "bytes_in b1", "lag_bytes billing"
    Column("step_s", Integer, primary_key=True),  # width of the interval
    Column("time_s", BigInteger, primary_key=True),  # begin of the interval
    Column("mean", Float, nullable=False),
    Column("most", Float, nullable=False),
    Column("count", Integer, nullable=False),
    Index("vq_samples_by_age", "step_s", "time_s"),
)

masks: Final = Table(
    "vq_masks",
    metadata,
    Column("cluster", String(100), primary_key=True),
    Column("topic", String(249), primary_key=True),
)

plans: Final = Table(
    "vq_plans",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("cluster", String(100), nullable=False, index=True),
    Column("made_ms", BigInteger, nullable=False),
    Column("person", String(100), nullable=False),
    Column("plan", Text, nullable=False),  # JSON
    Column("state", String(20), nullable=False),  # draft, applied, failed, cancelled
    Column("outcome", Text, nullable=False),  # JSON
)
