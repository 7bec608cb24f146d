"""The tables of the console. A change here needs a migration beside it; a test compares them."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

metadata: Final = MetaData()
#: An id that counts up. SQLite counts only what it calls INTEGER.
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")


def _string(chars: int) -> String:
    """Return a type that tells capitals apart: MariaDB's own does not, and names of vq do."""
    exact = mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin")
    return String(chars).with_variant(exact, "mysql", "mariadb")


#: MariaDB's own TEXT ends at 64 KiB.
_TEXT: Final = Text().with_variant(
    mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)
#: MariaDB's own BLOB ends at 64 KiB.
_BYTES: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

accounts: Final = Table(
    "vq_accounts",
    metadata,
    Column("name", _string(100), primary_key=True),
    Column("role", _string(20), nullable=False),
    Column("password_hash", _string(255)),  # None: logs in with a provider of identities
    Column("disabled", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
)

sessions: Final = Table(
    "vq_sessions",
    metadata,
    Column("token_hash", _string(64), primary_key=True),  # SHA-256 of what the browser has
    Column("account", _string(100), nullable=False, index=True),
    Column("role", _string(20)),  # from a provider of identities; None: that of the account
    Column("account_changed_ms", BigInteger),  # of the account at the login; None: it has none
    Column("csrf", _string(64), nullable=False),
    Column("address", _string(100), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger, nullable=False),
)

tokens: Final = Table(
    "vq_tokens",
    metadata,
    Column("digest", _string(64), primary_key=True),  # SHA-256 of what the program has
    Column("account", _string(100), nullable=False, index=True),
    Column("name", _string(100), nullable=False),
    Column("role", _string(20), nullable=False),
    Column("made_by", _string(100), nullable=False),  # "": by a command
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger),
    UniqueConstraint("account", "name", name="vq_tokens_by_name"),
)

audit: Final = Table(
    "vq_audit",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("time_ms", BigInteger, nullable=False, index=True),
    Column("person", _string(100), nullable=False),
    Column("token", _string(100)),  # name of the account's token; None: no token was used
    Column("address", _string(100), nullable=False),
    Column("cluster", _string(100), nullable=False),
    Column("act", _string(60), nullable=False),
    Column("subject", _string(255), nullable=False),
    Column("arguments", _TEXT, nullable=False),  # JSON
    Column("before", _TEXT, nullable=False),  # JSON; "": not known
    Column("after", _TEXT, nullable=False),  # JSON of the result
    Column("outcome", _string(20), nullable=False),  # begun, done, failed, unknown
    Column("error", _TEXT, nullable=False),
    Column("ended_ms", BigInteger),
)

samples: Final = Table(
    "vq_samples",
    metadata,
    Column("cluster", _string(100), primary_key=True),
    Column("series", _string(200), primary_key=True),  # "bytes_in b1", "lag_bytes billing"
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
    Column("cluster", _string(100), primary_key=True),
    Column("topic", _string(249), primary_key=True),
)

descriptors: Final = Table(
    "vq_descriptors",
    metadata,
    Column("cluster", _string(100), primary_key=True),
    Column("name", _string(200), primary_key=True),
    Column("time_ms", BigInteger, nullable=False),
    Column("person", _string(100), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("types", Integer, nullable=False),
    Column("data", _BYTES, nullable=False),  # a FileDescriptorSet
)

topic_types: Final = Table(
    "vq_topic_types",
    metadata,
    Column("cluster", _string(100), primary_key=True),
    Column("topic", _string(249), primary_key=True),
    Column("descriptors", _string(200), nullable=False),
    Column("type", _TEXT, nullable=False),  # full name of a type in it
)

plans: Final = Table(
    "vq_plans",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=True),
    Column("cluster", _string(100), nullable=False, index=True),
    Column("made_ms", BigInteger, nullable=False),
    Column("person", _string(100), nullable=False),
    Column("plan_id", _string(100), index=True),  # as the cluster knows it
    Column("plan", _TEXT, nullable=False),  # JSON
    Column("state", _string(20), nullable=False),  # draft, running, done, failed, cancelled
    Column("outcome", _TEXT, nullable=False),  # JSON
)
