"""Options of ``format("vq")``: from the texts that Spark hands over to checked values.

Pure: no connection is opened and no clock is read. ``Given`` is for every format of this package;
``ReadOptions`` are those of the source.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, Literal

from pyspark_vq.clocks import CLOCK_AHEAD_S, CLOCK_AHEAD_S_MAX
from pyspark_vq.installed import HERE, Installed
from vq import MessageFactoryConfig, Tls, Where
from vq.errors import InvalidArgument
from vq.message_filter import TAG_SEPARATOR, Filter
from vq.security.secret_files import read_secret

_KIB: Final = 1024
_SIZE: Final = re.compile(r"([0-9]{1,18})\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": _KIB, "m": _KIB**2, "g": _KIB**3, "t": _KIB**4}
#: Offsets have 63 bits in Spark.
OFFSET_MAX: Final = 2**63 - 1
#: So many tags may be in one filter.
TAGS_MAX: Final = 64
MIN_PARTITIONS_MAX: Final = 100_000
#: Less would not hold the smallest batch of a busy topic.
TRIGGER_BYTES_MIN: Final = 64 * _KIB
TRIGGER_BYTES_MAX: Final = 1 << 50
TIMEOUT_S: Final = 60.0
_TIMEOUT_S_MAX: Final = 3_600.0


class Given:
    """Options as a user gave them. Each is taken once; ``end`` refuses what nobody took."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._known = known
        self._left = {name.lower(): (name, str(value)) for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """Return the text of an option, without white space at its ends; None: it is not given.

        Raises:
            InvalidArgument: It is empty.
        """
        found = self._left.pop(name.lower(), None)
        if found is None:
            return None
        value = found[1].strip()
        if not value:
            raise InvalidArgument(f"option {name} is empty; give a value or leave it out")
        return value

    def whole(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number in ``[least, most]``; None: it is not given."""
        value = self.text(name)
        if value is None:
            return None
        number = int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else None
        if number is None or not least <= number <= most:
            raise InvalidArgument(f"{name} = {value!r} is not a whole number in [{least}, {most}]")
        return number

    def size(self, name: str, least: int, most: int) -> int | None:
        """Return a number of bytes such as ``500000``, ``64m`` or ``1g``; None: it is not given."""
        value = self.text(name)
        if value is None:
            return None
        found = _SIZE.fullmatch(value)
        number = int(found[1]) * _UNITS[found[2].lower()] if found else -1
        if not least <= number <= most:
            raise InvalidArgument(
                f"{name} = {value!r} is not a number of bytes in [{least}, {most}]; write it like "
                "500000, 64m or 1g"
            )
        return number

    def seconds(self, name: str, default: float, most: float) -> float:
        """Return a positive number of seconds up to ``most``."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number <= most:
            raise InvalidArgument(f"{name} = {value!r} is not a number of seconds in (0, {most:g}]")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """Return whether an option is ``true`` or ``false``."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            raise InvalidArgument(f"{name} = {value!r} is neither true nor false")
        return value.lower() == "true"

    def names(self, name: str) -> tuple[str, ...]:
        """Return the parts of a list such as ``a,b`` or ``["a", "b"]``; none: it is not given."""
        value = self.text(name)
        if value is None:
            return ()
        parts = _json(name, value) if value.startswith("[") else value.split(",")
        if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
            raise InvalidArgument(f'{name} = {value!r} is not a list like a,b or ["a", "b"]')
        found = tuple(dict.fromkeys(each.strip() for each in parts))
        if not all(found):
            raise InvalidArgument(f"{name} = {value!r} has an empty name")
        return found

    def end(self) -> None:
        """Return if every option was taken.

        Raises:
            InvalidArgument: Nobody took some: there is no such option here.
        """
        for lowered, (name, _) in self._left.items():
            near = get_close_matches(lowered, [each.lower() for each in self._known], n=1)
            meant = [each for each in self._known if each.lower() in near]
            raise InvalidArgument(
                f"there is no option {name!r} here"
                + (f"; do you mean {meant[0]}?" if meant else "")
                + f" Known: {', '.join(self._known)}"
            )


@dataclass(frozen=True, slots=True)
class Connect:
    """How to reach the cluster. It goes to the executors; its text shows no secret.

    Attributes:
        config: Of the client. Its files of TLS are read where the client is, on each machine.
        driver: What the process has that made this; others compare it with what they have.
    """

    config: MessageFactoryConfig
    driver: Installed = field(default=HERE, compare=False)

    #: The options that ``taken`` takes.
    NAMES = (
        "zookeeper",
        "cluster",
        "user",
        "password",
        "passwordFile",
        "tlsCa",
        "tlsCertificate",
        "tlsKey",
        "zookeeperAuthFile",
        "zookeeperTlsCa",
        "zookeeperTlsCertificate",
        "zookeeperTlsKey",
    )

    @classmethod
    def taken(cls, given: Given, archive_places: tuple[str, ...] = ()) -> "Connect":
        """Return what the options say, and without them what the client's variables say.

        Reads the files of secrets. ZooKeeper's is given as a file alone: Spark hides options with
        ``password`` in their name from plans, and not others.

        Raises:
            InvalidArgument: A value is unusable.
        """
        password, path = given.text("password"), given.text("passwordFile")
        if password is not None and path is not None:
            raise InvalidArgument("password and passwordFile exclude one another")
        auth = given.text("zookeeperAuthFile")
        said: dict[str, Any] = {
            "zookeeper": given.text("zookeeper"),
            "cluster": given.text("cluster"),
            "user": given.text("user"),
            "password": read_secret(path) if path is not None else password,
            "tls": _tls(given, "tls"),
            "zookeeper_auth": auth and read_secret(auth, "zookeeperAuth"),
            "zookeeper_tls": _tls(given, "zookeeperTls"),
            "archive_places": archive_places or None,
        }
        return cls(MessageFactoryConfig(**{k: v for k, v in said.items() if v is not None}))


def _tls(given: Given, prefix: str) -> Tls | None:
    """Return the files of TLS that the options name; None: they name none."""
    files = {name: given.text(prefix + name.capitalize()) for name in ("ca", "certificate", "key")}
    return Tls(**files) if any(files.values()) else None


@dataclass(frozen=True, slots=True)
class Place:
    """One end of what is read of a partition; exactly one field is set.

    Attributes:
        end: ``earliest`` or ``latest``.
        time_ms: The first batch that the broker stored at that time or later, in ms since 1970.
        offset: Where a record starts; a place inside a record is the start of the next one.
    """

    end: str | None = None
    time_ms: int | None = None
    offset: int | None = None


EARLIEST: Final = Place("earliest")
LATEST: Final = Place("latest")


@dataclass(frozen=True, slots=True)
class Places:
    """One end of what is read, of all partitions.

    Attributes:
        default: Of partitions that are not named.
        named: By topic and number of the partition.
    """

    default: Place
    named: Mapping[tuple[str, int], Place]

    @classmethod
    def parsed(cls, name: str, value: str | None, default: Place) -> "Places":
        """Return what an option says: one place, or JSON ``{"topic": {"0": place}}``.

        A place is ``earliest``, ``latest``, a time in ISO 8601, or in JSON also an offset. A time
        without a zone is UTC.

        Raises:
            InvalidArgument: It says something else.
        """
        if value is None:
            return cls(default, {})
        if not value.startswith("{"):
            return cls(_place(name, value), {})
        named: dict[tuple[str, int], Place] = {}
        for topic, partitions in _json(name, value).items():
            if not isinstance(partitions, dict):
                partitions = {"*": partitions}
            for number, place in partitions.items():
                if number != "*" and not re.fullmatch(r"[0-9]{1,9}", number):
                    raise InvalidArgument(
                        f"{name}: {number!r} of topic {topic!r} is not the number of a partition"
                    )
                named[topic, -1 if number == "*" else int(number)] = _place(name, place)
        return cls(default, named)

    def of(self, topic: str, partition: int) -> Place:
        """Return the place of one partition."""
        found = self.named.get((topic, partition)) or self.named.get((topic, -1))
        return found or self.default


def _place(name: str, value: Any) -> Place:
    if value in ("earliest", "latest"):
        return Place(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= OFFSET_MAX:
            raise InvalidArgument(f"{name}: offset {value} is outside [0, {OFFSET_MAX}]")
        return Place(offset=value)
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        time_ms = int(moment.timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        time_ms = -1
    if time_ms < 0:
        raise InvalidArgument(
            f"{name} = {value!r} is not a place: give earliest, latest, "
            "a time of 1970 to 9999 like 2026-11-22T09:30:00+01:00, or JSON like "
            '{"orders": {"0": 1234, "1": "latest"}}'
        )
    return Place(time_ms=time_ms)


def _json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name} = {value!r} is not JSON: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the source reads, and how; docs/reference/spark.md has the table.

    Attributes:
        connect: Where the cluster is.
        topics: Their names; none: see ``topic_pattern``.
        topic_pattern: A regular expression for the whole name.
        starting: Where reading begins.
        joining: Where a topic begins that a running stream, or its restart, finds later.
        ending: Where a batch query ends.
        min_partitions: Ranges are split until there are at least so many; None: one range a task.
        bytes_per_trigger: A micro-batch has about so many bytes at most; None: no bound.
        fail_on_data_loss: Whether a query fails when messages it should read are not there.
        group: The consumer group to which a stream commits its progress; None: to none.
        include_archive: Whether archived blocks are read.
        archives: Who reads those at URLs: ``broker``, or ``direct``: the task.
        wanted: Which messages.
        read_from: ``master``, or ``any`` of the nodes in sync.
        timeout_s: A partition that could not be read for so long fails the task.
        clock_ahead_s: How far a producer's clock may be ahead of the brokers'.
    """

    connect: Connect
    topics: tuple[str, ...]
    topic_pattern: str | None
    starting: Places
    joining: Places
    ending: Places
    min_partitions: int | None
    bytes_per_trigger: int | None
    fail_on_data_loss: bool
    group: str | None
    include_archive: bool
    archives: Literal["broker", "direct"]
    wanted: Filter
    read_from: Literal["master", "any"]
    timeout_s: float
    clock_ahead_s: float

    NAMES = (
        *Connect.NAMES,
        "topics",
        "topicPattern",
        "startingOffsets",
        "endingOffsets",
        "minPartitions",
        "maxBytesPerTrigger",
        "failOnDataLoss",
        "group",
        "includeArchive",
        "archives",
        "archivePlaces",
        "tag",
        "where",
        "readFrom",
        "timeout",
        "clockAhead",
    )

    @classmethod
    def parsed(cls, options: Mapping[str, str], *, stream: bool) -> "ReadOptions":
        """Return checked options; a batch query begins at the oldest message, a stream at the end.

        Raises:
            InvalidArgument: One is unknown, or unusable, or does not fit to the others.
        """
        given = Given(options, cls.NAMES)
        found = cls(
            connect=Connect.taken(given, given.names("archivePlaces")),
            topics=given.names("topics"),
            topic_pattern=_pattern(given.text("topicPattern")),
            starting=Places.parsed(
                "startingOffsets",
                starting := given.text("startingOffsets"),
                LATEST if stream else EARLIEST,
            ),
            joining=Places.parsed("startingOffsets", starting, EARLIEST),
            ending=Places.parsed("endingOffsets", ending := given.text("endingOffsets"), LATEST),
            min_partitions=given.whole("minPartitions", 1, MIN_PARTITIONS_MAX),
            bytes_per_trigger=given.size(
                "maxBytesPerTrigger", TRIGGER_BYTES_MIN, TRIGGER_BYTES_MAX
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            group=given.text("group"),
            include_archive=given.flag("includeArchive", default=True),
            archives=_archives(given.text("archives")),
            wanted=_filter(given.text("tag"), given.text("where")),
            read_from=_nodes(given.text("readFrom")),
            timeout_s=given.seconds("timeout", TIMEOUT_S, _TIMEOUT_S_MAX),
            clock_ahead_s=given.seconds("clockAhead", CLOCK_AHEAD_S, CLOCK_AHEAD_S_MAX),
        )
        given.end()
        if bool(found.topics) == (found.topic_pattern is not None):
            raise InvalidArgument(
                "give one of topics and topicPattern: which topics are to be read?"
            )
        if stream and ending is not None:
            raise InvalidArgument(
                "endingOffsets is for batch queries; a stream ends with trigger(availableNow=True)"
            )
        if not stream and (found.group is not None or found.bytes_per_trigger is not None):
            name = "group" if found.group is not None else "maxBytesPerTrigger"
            raise InvalidArgument(f"{name} is for streams; a batch query commits nothing")
        return found


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidArgument(
                f"topicPattern = {text!r} is not a regular expression: {error}"
            ) from error
    return text


def _nodes(text: str | None) -> Literal["master", "any"]:
    if text is None or text == "master":
        return "master"
    if text == "any":
        return "any"
    raise InvalidArgument(f"readFrom = {text!r} is neither master nor any")


def _archives(text: str | None) -> Literal["broker", "direct"]:
    if text is None or text == "broker":
        return "broker"
    if text == "direct":
        return "direct"
    raise InvalidArgument(f"archives = {text!r} is neither broker nor direct")


def _filter(text: str | None, where: str | None) -> Filter:
    """Return the filter ``a || b``, or that of an expression, as of a consumer.

    No tag may be left out.
    """
    if where is not None:
        if text is not None:
            raise InvalidArgument(
                f"tag = {text!r} and where = {where!r}: give one of them; in an expression the tag "
                "is TAGS, as in TAGS IN ('a', 'b')"
            )
        return Filter(where=Filter.of(Where(where)).where)  # plain: it goes to the executors
    if text is not None and not all(each.strip() for each in text.split(TAG_SEPARATOR)):
        raise InvalidArgument(f"tag = {text!r} is not a list of 1 to {TAGS_MAX} tags like a || b")
    return Filter.parse(text, "tag")
