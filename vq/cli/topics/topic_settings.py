"""The settings of a topic on the command line: their options, and how they are shown.

``vq topic create`` gives the settings of one topic, ``vq cluster settings`` those of the topics
that producers create.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from vq import limits
from vq.cli.base.json_schema import Shape
from vq.cli.base.options import compression_options, option, size_of, together
from vq.cli.base.output import Output, Value
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.errors import InvalidArgument
from vq.model import (
    COMMON_POOL,
    Compression,
    FlushMode,
    Replication,
    RetentionPolicy,
    TopicSettings,
)

#: Stand for None where a text is needed.
DEFAULT: Final = "default"
NEVER: Final = "never"
BESIDE: Final = "beside"
#: Of a number of hours; the bound of the setting is far below.
_DIGITS_MAX: Final = 20


def topic_options(*, partitions_max: int | None, defaults: bool) -> Callable[..., Any]:
    """Add one option for each setting, named like the field; None: it was not given.

    Args:
        partitions_max: The most partitions, for the help text; None: no option for their number.
        defaults: Show the defaults: an option that is not given has its default.
    """

    def setting(declared: str, about: str, default: str, kind: Any = None) -> Callable[..., Any]:
        return option(declared, f"{about}  [{default}]" if defaults else about, kind)

    options: list[Callable[..., Any]] = [
        setting("--partitions N", f"How many, 1 to {partitions_max}.", "1", int),
        setting(
            "--flush",
            "Acknowledge after fdatasync, or after the write (a power cut may lose seconds).",
            "sync",
            FlushMode,
        ),
        setting(
            "--flush-messages N as flush_interval_messages",
            "With async: fdatasync every N messages.",
            "1000",
            int,
        ),
        setting("--flush-ms MS as flush_interval_ms", "With async: and every MS.", "10000", int),
        setting(
            "--retention-hours HOURS",
            "Delete messages older than this, in whole blocks; or 'forever'.",
            "72, unless `vq cluster settings` says otherwise",
        ),
        setting(
            "--retention-bytes BYTES",
            "Delete the oldest messages of a partition while so many bytes are left, such as "
            "10G; or 'unlimited'.",
            "unlimited",
        ),
        setting(
            "--retention-early-hours HOURS",
            "While a disk is too full, delete messages older than this before their time, the "
            "oldest first; or 'never'.",
            "never",
        ),
        setting(
            "--retention-policy",
            "Delete what is beyond that at once; archive it before; or keep it until every "
            "consumer group of the topic has read it.",
            "archive, unless `vq cluster settings` says otherwise",
            RetentionPolicy,
        ),
        setting(
            "--archive-after-hours HOURS",
            "Once a day, turn blocks with only older messages into archives, which are read "
            "like blocks; or 'never'; or 'default': 24 with the policy archive, else never.",
            "default",
        ),
        setting(
            "--archive-to URL",
            "Keep archives in this directory, such as file:///mnt/archive; or 'beside': beside "
            "the log.",
            "beside",
        ),
        setting("--max-message-bytes BYTES", "At most 1048576.", "1048576", int),
        compression_options(
            "How producers compress messages if their own settings do not say it.",
            ("none", "128K") if defaults else None,
        ),
        setting(
            "--replication",
            "Acknowledge when every node in sync has it, or the master (a take-over may lose "
            "the last messages).",
            "sync",
            Replication,
        ),
        setting(
            "--min-insync N", "Nodes of a group that must be in sync to take messages.", "1", int
        ),
        setting(
            "--pool NAME",
            f"Only broker groups of this pool; '{COMMON_POOL}': those without one.",
            COMMON_POOL,
        ),
    ]

    return together(*(options if partitions_max is not None else options[1:]))


def settings_among(cluster: ClusterSettings, options: Mapping[str, Any]) -> TopicSettings:
    """Return the settings of a new topic: the options, and the defaults of the cluster.

    Raises:
        InvalidArgument: As ``with_options``.
    """
    before = cluster.defaults
    if options["retention_policy"] is not None:  # it stands for itself
        before = TopicSettings(retention_hours=before.retention_hours)
    return with_options(before, options)


def with_options(before: TopicSettings, options: Mapping[str, Any]) -> TopicSettings:
    """Return settings with the values of the options that were given.

    Raises:
        InvalidArgument: A value is unusable, or has no effect with the others.
    """
    values = {name: value for name, value in options.items() if value is not None}
    if "retention_hours" in values:
        values["retention_hours"] = _hours(
            "--retention-hours", values["retention_hours"], "forever"
        )
    if "retention_early_hours" in values:
        given = values["retention_early_hours"]
        values["retention_early_hours"] = _hours("--retention-early-hours", given, "never")
    if "retention_bytes" in values:
        values["retention_bytes"] = _bytes(values["retention_bytes"])
    if "archive_after_hours" in values:
        given = values["archive_after_hours"]
        if given == NEVER:
            values |= _never_archived(before, values)
        else:
            values["archive_after_hours"] = _hours("--archive-after-hours", given, DEFAULT)
    if values.get("archive_to") == BESIDE:
        values["archive_to"] = None
    after = replace(before, **values)
    for given, name in (
        ("--flush-messages", "flush_interval_messages"),
        ("--flush-ms", "flush_interval_ms"),
    ):
        if name in values and after.flush is not FlushMode.ASYNC:
            raise InvalidArgument(
                f"{given} {values[name]} has no effect with --flush {after.flush}, which flushes "
                f"every append; leave {given} out, or take --flush async"
            )
    return after


def _never_archived(before: TopicSettings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``--archive-after-hours never`` means beside the other values."""
    policy = values.get("retention_policy", before.retention_policy)
    if policy != RetentionPolicy.ARCHIVE:
        return {"archive_after_hours": None}
    if "retention_policy" in values or values.get("archive_to", BESIDE) != BESIDE:
        raise InvalidArgument(
            "--archive-after-hours never leaves nothing to be archived: leave out "
            "--retention-policy archive and --archive-to, or give a number of hours"
        )
    return {
        "archive_after_hours": None,
        "archive_to": None,
        "retention_policy": RetentionPolicy.DELETE,
    }


def _hours(option: str, text: str, none: str) -> int | None:
    if text == none:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"{option} {text!r} is neither a whole number nor {none!r}")
    if len(text) > _DIGITS_MAX:  # with thousands of them, ``int`` refuses
        raise InvalidArgument(f"{option} has {len(text)} digits, more than {_DIGITS_MAX}")
    return int(text)


def _bytes(text: str) -> int | None:
    if text == "unlimited":
        return None
    try:
        return size_of(text)
    except ValueError:
        raise InvalidArgument(
            f"--retention-bytes {text!r} is neither a number of bytes, such as 500M or 10G, nor "
            "'unlimited'"
        ) from None


def remark_retention(output: Output, options: Mapping[str, Any], settings: TopicSettings) -> None:
    """Say when what was given about retention deletes nothing."""
    limited = (
        settings.retention_hours is not None
        or settings.retention_bytes is not None
        or settings.retention_early_hours is not None
    )
    limited |= settings.retention_policy is RetentionPolicy.ARCHIVE  # which has another effect
    if options["retention_policy"] is not None and not limited:
        output.remark(
            f"--retention-policy {settings.retention_policy} has no effect with --retention-hours "
            "forever and --retention-bytes unlimited: nothing is deleted"
        )
    hours, early = settings.retention_hours, settings.retention_early_hours
    if early is not None and hours is not None and early >= hours:
        output.remark(
            f"--retention-early-hours {early} has no effect with --retention-hours {hours}: no "
            "message becomes so old"
        )


def remark_threshold(output: Output, options: Mapping[str, Any], settings: TopicSettings) -> None:
    """Say for whom a threshold that was given counts, if the topic itself is not compressed."""
    threshold = options["compression_threshold"]
    if threshold is not None and settings.compression in {None, Compression.NONE}:
        output.remark(
            f"--compression-threshold {threshold} counts only for producers whose own settings say "
            "how to compress; give --compression zstd to compress for all"
        )


def shown_settings(settings: TopicSettings) -> dict[str, Value]:
    """Return all settings but the number of partitions, to be shown."""
    hours = settings.archived_after_hours
    return {
        "flush": str(settings.flush),
        "flush_interval_messages": settings.flush_interval_messages,
        "flush_interval_ms": settings.flush_interval_ms,
        "retention": shown_retention(settings),
        "retention_bytes": "unlimited"
        if settings.retention_bytes is None
        else settings.retention_bytes,
        "retention_early": "never"
        if settings.retention_early_hours is None
        else f"{settings.retention_early_hours} h",
        "retention_policy": str(settings.retention_policy),
        "archive_after": "never" if hours is None else f"{hours} h",
        "archive_to": settings.archive_to or BESIDE,
        "max_message_bytes": settings.max_message_bytes,
        "compression": settings.compression or "none",
        "compression_threshold": _threshold(settings),
        "replication": str(settings.replication),
        "min_insync": settings.min_insync,
        "pool": _pool(settings),
        "readable": settings.readable,
        "writable": settings.writable,
    }


def _compression(settings: TopicSettings) -> str:
    return str(settings.compression or "none")


def _pool(settings: TopicSettings) -> str:
    return settings.pool or COMMON_POOL


def show_settings(output: Output, first: Mapping[str, Value], settings: TopicSettings) -> None:
    """Print settings behind the fields of ``first``."""
    shown = SETTINGS(settings) if output.as_json else shown_settings(settings)
    output.record({**first, **shown})


def retention_s(settings: TopicSettings) -> int | None:
    """Return how long messages are kept in seconds; None: for ever."""
    hours = settings.retention_hours
    return None if hours is None else _seconds(hours)


def _seconds(hours: int) -> int:
    return hours * 3600


def shown_retention(settings: TopicSettings) -> str:
    """Return how long messages are kept."""
    hours = settings.retention_hours
    return "forever" if hours is None else f"{hours} h"


def _threshold(settings: TopicSettings) -> int:
    given = settings.compression_threshold
    return limits.COMPRESSION_THRESHOLD_BYTES if given is None else given


#: All settings but the number of partitions.
SETTINGS: Final = Shape(
    TopicSettings,
    "flush flush_interval_messages flush_interval_s retention_s=retention_hours retention_bytes "
    "retention_early_s=retention_early_hours retention_policy archive_after_s=archived_after_hours "
    "archive_to max_message_bytes compression= compression_threshold_bytes= replication "
    "min_insync pool= readable writable",
    retention_s=_seconds,
    retention_early_s=_seconds,
    archive_after_s=_seconds,
    compression=_compression,
    compression_threshold_bytes=_threshold,
    pool=_pool,
)
