"""What each ``vq report`` prints with ``--json``, by the rules of ``schemas``."""

from typing import Final

from vq.cli.base.json_schema import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    having,
    mapping,
    maybe,
    record,
    some,
)

_VERDICTS: Final = record(stopped=WHOLE, stalled=WHOLE, warning=WHOLE, unknown=WHOLE, ok=WHOLE)
_ROLLED_LAG: Final = having(
    _VERDICTS,
    name=TEXT,
    partitions=WHOLE,
    lag_bytes=maybe(WHOLE),
    lag_messages=maybe(WHOLE),
    lag_s=maybe(NUMBER),
    unknown_lags=WHOLE,
    unknown_messages=WHOLE,
    lag_is_upper_bound=TRUTH,
    skew=maybe(NUMBER),
)
_LAG_ROW: Final = record(
    group=TEXT,
    topic=maybe(TEXT),
    partition=maybe(WHOLE),
    owner=maybe(TEXT),
    end=maybe(WHOLE),
    committed=maybe(WHOLE),
    lag_bytes=maybe(WHOLE),
    lag_messages=maybe(WHOLE),
    lag_s=maybe(NUMBER),
    verdict=TEXT,
    cause=maybe(TEXT),
    detail=maybe(TEXT),
    start=maybe(WHOLE),
    broker=maybe(TEXT),
    pool=maybe(TEXT),
    members=WHOLE,
    committed_s=maybe(NUMBER),
    trend=maybe(TEXT),
    trend_bytes_per_s=maybe(NUMBER),
    filter=maybe(TEXT),
    committed_is_copy=maybe(TRUTH),
    model=maybe(TEXT),
)

_FILES: Final = record(out=maybe(TEXT), csv=maybe(TEXT), html=maybe(TEXT))
_SILENT: Final = some(record(group=TEXT, node=TEXT, error=TEXT))
_DISK_FORECAST: Final = record(
    group=TEXT,
    node=TEXT,
    directory=TEXT,
    level=TEXT,
    bytes_total=maybe(WHOLE),
    bytes_used=maybe(WHOLE),
    file_system=TEXT,
    bytes_free=maybe(WHOLE),
    vq_bytes=maybe(WHOLE),
    vq_bytes_per_day=maybe(NUMBER),
    settles_at_bytes=maybe(NUMBER),
    verdict=TEXT,
    growth_bytes_per_day=maybe(NUMBER),
    growth_low=maybe(NUMBER),
    growth_high=maybe(NUMBER),
    full_in_days=maybe(NUMBER),
    full_earliest_days=maybe(NUMBER),
    full_latest_days=maybe(NUMBER),
    horizon_days=maybe(NUMBER),
    points=WHOLE,
    broker_growth_bytes_per_day=maybe(NUMBER),
    broker_full_in_days=maybe(NUMBER),
    reason=TEXT,
)
_STORED: Final = record(
    bytes=maybe(WHOLE),
    disk_bytes=maybe(WHOLE),
    messages=maybe(WHOLE),
    archived_bytes=maybe(WHOLE),
    archive_bytes=maybe(WHOLE),
    first_s=maybe(NUMBER),
    last_s=maybe(NUMBER),
    bytes_per_day=maybe(NUMBER),
    messages_per_day=maybe(NUMBER),
    mean_message_bytes=maybe(NUMBER),
)
_TOPIC_CAPACITY: Final = having(
    _STORED,
    topic=TEXT,
    partitions=WHOLE,
    unknown=WHOLE,
    hot=WHOLE,
    idle=WHOLE,
    skew=maybe(NUMBER),
    copies_disk_bytes=maybe(WHOLE),
)
_PARTITION_CAPACITY: Final = having(
    _STORED,
    topic=TEXT,
    partition=WHOLE,
    group=maybe(TEXT),
    verdict=TEXT,
    blocks=maybe(WHOLE),
    archived_blocks=maybe(WHOLE),
    share=maybe(NUMBER),
    reason=maybe(TEXT),
)
_LOADS: Final = mapping(NUMBER)
_FINDING: Final = record(
    kind=TEXT,
    topic=TEXT,
    partition=WHOLE,
    start=WHOLE,
    end=maybe(WHOLE),
    node=TEXT,
    detail=TEXT,
)
_AUDITED: Final = record(
    topic=TEXT,
    partition=WHOLE,
    verdict=TEXT,
    start=maybe(WHOLE),
    end=maybe(WHOLE),
    bytes=maybe(WHOLE),
    messages=maybe(WHOLE),
    batches=maybe(WHOLE),
    first_s=maybe(NUMBER),
    last_s=maybe(NUMBER),
    producers=maybe(WHOLE),
    id_falls=maybe(WHOLE),
    deleted_bytes=WHOLE,
    findings=WHOLE,
)

LAG: Final = record(
    cluster=TEXT,
    snapshot=TEXT,
    snapshot_s=WHOLE,
    groups=WHOLE,
    rows=WHOLE,
    verdicts=_VERDICTS,
    thresholds=record(
        warn_s=maybe(NUMBER),
        warn_bytes=maybe(WHOLE),
        warn_messages=maybe(WHOLE),
        stalled_after_s=NUMBER,
    ),
    rollups=record(
        group=some(_ROLLED_LAG),
        topic=some(_ROLLED_LAG),
        broker=some(_ROLLED_LAG),
        pool=some(_ROLLED_LAG),
    ),
    offenders=some(_LAG_ROW),
    silent=mapping(TEXT),
    files=record(out=maybe(TEXT), csv=maybe(TEXT), html=maybe(TEXT)),
)
CAPACITY: Final = record(
    cluster=TEXT,
    snapshot=TEXT,
    snapshot_s=WHOLE,
    disks=some(_DISK_FORECAST),
    topics=some(_TOPIC_CAPACITY),
    topic_count=WHOLE,
    partitions=some(_PARTITION_CAPACITY),
    verdicts=record(hot=WHOLE, normal=WHOLE, idle=WHOLE, unknown=WHOLE),
    what_ifs=some(
        record(
            topic=TEXT,
            action=TEXT,
            hours=WHOLE,
            group=TEXT,
            bytes_freed=maybe(WHOLE),
            blocks=WHOLE,
            unknown_blocks=WHOLE,
            ratio_of=maybe(TEXT),
        )
    ),
    rates=some(
        record(
            topic=TEXT,
            hours=WHOLE,
            **{
                f"{what}_per_s_{share}": maybe(NUMBER)
                for what in ("messages", "bytes")
                for share in ("p50", "p95", "max")
            },
        )
    ),
    sizes=some(record(bits=WHOLE, messages=WHOLE, bytes=WHOLE)),
    bytes_per_day=maybe(NUMBER),
    messages_per_day=maybe(NUMBER),
    plan=record(
        done=TRUTH,
        moves=some(
            record(
                **{"topic": TEXT, "partition": WHOLE, "from": TEXT, "to": TEXT},
                at_offset=maybe(WHOLE),
                reason=TEXT,
                bytes_per_day=WHOLE,
                load=record(**{"from": some(NUMBER), "to": some(NUMBER)}),
            )
        ),
        commands=some(TEXT),
        load_before=_LOADS,
        load_after=_LOADS,
        notes=some(TEXT),
    ),
    silent=_SILENT,
    files=having(_FILES, plan=maybe(TEXT)),
)
AUDIT: Final = record(
    cluster=TEXT,
    snapshot=TEXT,
    snapshot_s=WHOLE,
    sound=TRUTH,
    total=WHOLE,
    counts=mapping(WHOLE),
    findings=some(_FINDING),
    partitions=some(_AUDITED),
    sizes=mapping(some(WHOLE)),
    archives=maybe(WHOLE),
    read_bytes=WHOLE,
    compared_bytes=WHOLE,
    notes=some(TEXT),
    files=_FILES,
)
