"""Values of the whole cluster: ``settings`` and ``security/secret``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from vq import limits
from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SECURITY, SETTINGS
from vq.coordination.tree.values.topics import settings_from_json, settings_to_json
from vq.coordination.tree.values.value import SingleValue, Value
from vq.errors import CoordinationError, InvalidArgument
from vq.model import RetentionPolicy, TopicSettings
from vq.shown import shown

#: How long a deleted topic can be brought back, and how long at most.
DELETE_GRACE_HOURS: Final = 72
DELETE_GRACE_HOURS_MAX: Final = 8_760

#: Settings of new topics that are defaults of topics that operators create, too.
DEFAULTS: Final = frozenset(
    {"retention_hours", "retention_policy", "archive_after_hours", "archive_to"}
)

#: Of a new secret, and the least of any.
SECRET_BYTES: Final = 32


def _archived() -> TopicSettings:
    """Return the settings of topics of a new cluster: archived after 24 h, deleted after 72 h."""
    return TopicSettings(retention_policy=RetentionPolicy.ARCHIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(SingleValue):
    """What operators decided for the whole cluster.

    Attributes:
        may_create: Producers create a topic that is missing when they publish it.
        new_topics: The settings of such topics, at most 500 partitions. They are kept while
            producers may create none. What they say of ``DEFAULTS`` holds for topics that operators
            create without a word about it, too.
        delete_grace_hours: How long a topic that is deleted from now on can be brought back, 0 to
            8 760 hours; 0: not at all.
    """

    _what = "settings of the cluster"
    may_create: bool = False
    new_topics: TopicSettings = field(default_factory=_archived)
    delete_grace_hours: int = DELETE_GRACE_HOURS

    def __post_init__(self) -> None:
        hours: object = self.delete_grace_hours
        if type(hours) is not int or not 0 <= hours <= DELETE_GRACE_HOURS_MAX:
            raise InvalidArgument(
                f"delete_grace_hours = {shown(hours)} is not a whole number in "
                f"[0, {DELETE_GRACE_HOURS_MAX}]"
            )
        partitions, most = self.new_topics.partitions, limits.AUTO_CREATE_PARTITIONS_MAX
        if partitions > most:
            raise InvalidArgument(
                f"partitions = {partitions} is above {most}, the most of a topic that a producer "
                "creates: it is created in one step; give fewer, and create larger topics with "
                "`vq topic create`"
            )
        if not self.new_topics.writable:
            raise InvalidArgument(
                "writable = False: no producer could send to a topic that it creates; give True"
            )

    @property
    def auto_create(self) -> TopicSettings | None:
        """``new_topics``, or None if producers may create no topics."""
        return self.new_topics if self.may_create else None

    @property
    def defaults(self) -> TopicSettings:
        """The settings of a topic that an operator creates without a word about them."""
        return TopicSettings(**{name: getattr(self.new_topics, name) for name in DEFAULTS})

    @staticmethod
    def path() -> str:
        """Return the path of the only node. For vq only."""
        return SETTINGS

    def _to_json(self) -> dict[str, Any]:
        auto_create = {"enabled": self.may_create, **settings_to_json(self.new_topics)}
        values: dict[str, Any] = {"auto_create": auto_create}
        if self.delete_grace_hours != DELETE_GRACE_HOURS:
            values["delete_grace_hours"] = self.delete_grace_hours
        return values

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        auto_create = document.get("auto_create")
        if auto_create is None:
            auto_create = {"enabled": False, **settings_to_json(_archived())}
        if type(auto_create["enabled"]) is not bool:
            raise TypeError(f"enabled = {auto_create['enabled']!r} is not a bool")
        new_topics = settings_from_json({"flush": "sync", **auto_create})
        return cls(
            may_create=auto_create["enabled"],
            new_topics=new_topics,
            delete_grace_hours=document.get("delete_grace_hours", DELETE_GRACE_HOURS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecret(Value):
    """``security/secret``: what its brokers know and others do not. Made once.

    ``secret`` is in hexadecimal digits, at least ``SECRET_BYTES`` bytes. No text shows it.
    """

    _what = "secret"
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) < SECRET_BYTES:
            raise ValueError(f"a secret of {len(self.key)} bytes is too short")

    @classmethod
    def of(cls, key: bytes) -> Self:
        """Return the value that has these bytes."""
        return cls(secret=key.hex())

    @property
    def key(self) -> bytes:
        """The bytes."""
        return bytes.fromhex(self.secret)

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return join(SECURITY, "secret")

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """See ``Value.decode``; the error does not tell what is stored there."""
        try:
            # Not super() alone: a class with slots is made anew, and this one is not its base.
            return super(ClusterSecret, cls).decode(path, data)
        except CoordinationError as error:
            if error.__cause__ is None:
                raise  # a newer vq has written it; that error has no bytes of it
        raise CoordinationError(
            f"znode {path!r} has something that is not a {cls._what}; it is not shown; "
            "`vq cluster replace-secret --yes` puts a new one there"
        )
