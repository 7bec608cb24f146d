"""What each ``vq report`` prints with ``--json``, by the rules of ``schemas``."""

from typing import Final

from vq.cli.base.json_schema import Shape, having, mapping, maybe, record, some
from vq.operations.groups.lag_rules import LagThresholds

_VERDICTS: Final = record(stopped=int, stalled=int, warning=int, unknown=int, ok=int)
_ROLLED_LAG: Final = having(
    _VERDICTS,
    name=str,
    partitions=int,
    lag_bytes=maybe(int),
    lag_messages=maybe(int),
    lag_s=maybe(float),
    unknown_lags=int,
    unknown_messages=int,
    lag_is_upper_bound=bool,
    skew=maybe(float),
)
_LAG_ROW: Final = record(
    group=str,
    topic=maybe(str),
    partition=maybe(int),
    owner=maybe(str),
    end=maybe(int),
    committed=maybe(int),
    lag_bytes=maybe(int),
    lag_messages=maybe(int),
    lag_s=maybe(float),
    verdict=str,
    cause=maybe(str),
    detail=maybe(str),
    start=maybe(int),
    broker=maybe(str),
    pool=maybe(str),
    members=int,
    committed_s=maybe(float),
    trend=maybe(str),
    trend_bytes_per_s=maybe(float),
    filter=maybe(str),
    committed_is_copy=maybe(bool),
    model=maybe(str),
)

_FILES: Final = record(out=maybe(str), csv=maybe(str), html=maybe(str))
_SILENT: Final = some(record(group=str, node=str, error=str))
_DISK_FORECAST: Final = record(
    group=str,
    node=str,
    directory=str,
    level=str,
    bytes_total=maybe(int),
    bytes_used=maybe(int),
    file_system=str,
    bytes_free=maybe(int),
    vq_bytes=maybe(int),
    vq_bytes_per_day=maybe(float),
    settles_at_bytes=maybe(float),
    verdict=str,
    growth_bytes_per_day=maybe(float),
    growth_low=maybe(float),
    growth_high=maybe(float),
    full_in_days=maybe(float),
    full_earliest_days=maybe(float),
    full_latest_days=maybe(float),
    horizon_days=maybe(float),
    points=int,
    broker_growth_bytes_per_day=maybe(float),
    broker_full_in_days=maybe(float),
    reason=str,
)
_STORED: Final = record(
    bytes=maybe(int),
    disk_bytes=maybe(int),
    messages=maybe(int),
    archived_bytes=maybe(int),
    archive_bytes=maybe(int),
    first_s=maybe(float),
    last_s=maybe(float),
    bytes_per_day=maybe(float),
    messages_per_day=maybe(float),
    mean_message_bytes=maybe(float),
)
_TOPIC_CAPACITY: Final = having(
    _STORED,
    topic=str,
    partitions=int,
    unknown=int,
    hot=int,
    idle=int,
    skew=maybe(float),
    copies_disk_bytes=maybe(int),
)
_PARTITION_CAPACITY: Final = having(
    _STORED,
    topic=str,
    partition=int,
    group=maybe(str),
    verdict=str,
    blocks=maybe(int),
    archived_blocks=maybe(int),
    share=maybe(float),
    reason=maybe(str),
)
_LOADS: Final = mapping(float)
_FINDING: Final = record(
    kind=str,
    topic=str,
    partition=int,
    start=int,
    end=maybe(int),
    node=str,
    detail=str,
)
_AUDITED: Final = record(
    topic=str,
    partition=int,
    verdict=str,
    start=maybe(int),
    end=maybe(int),
    bytes=maybe(int),
    messages=maybe(int),
    batches=maybe(int),
    first_s=maybe(float),
    last_s=maybe(float),
    producers=maybe(int),
    id_falls=maybe(int),
    deleted_bytes=int,
    findings=int,
)

LAG: Final = record(
    cluster=str,
    snapshot=str,
    snapshot_s=int,
    groups=int,
    rows=int,
    verdicts=_VERDICTS,
    thresholds=Shape(LagThresholds),
    rollups=record(
        group=some(_ROLLED_LAG),
        topic=some(_ROLLED_LAG),
        broker=some(_ROLLED_LAG),
        pool=some(_ROLLED_LAG),
    ),
    offenders=some(_LAG_ROW),
    silent=mapping(str),
    files=_FILES,
)
CAPACITY: Final = record(
    cluster=str,
    snapshot=str,
    snapshot_s=int,
    disks=some(_DISK_FORECAST),
    topics=some(_TOPIC_CAPACITY),
    topic_count=int,
    partitions=some(_PARTITION_CAPACITY),
    verdicts=record(hot=int, normal=int, idle=int, unknown=int),
    what_ifs=some(
        record(
            topic=str,
            action=str,
            hours=int,
            group=str,
            bytes_freed=maybe(int),
            blocks=int,
            unknown_blocks=int,
            ratio_of=maybe(str),
        )
    ),
    rates=some(
        record(
            topic=str,
            hours=int,
            **{
                f"{what}_per_s_{share}": maybe(float)
                for what in ("messages", "bytes")
                for share in ("p50", "p95", "max")
            },
        )
    ),
    sizes=some(record(bits=int, messages=int, bytes=int)),
    bytes_per_day=maybe(float),
    messages_per_day=maybe(float),
    plan=record(
        done=bool,
        moves=some(
            record(
                **{"topic": str, "partition": int, "from": str, "to": str},
                at_offset=maybe(int),
                reason=str,
                bytes_per_day=int,
                load=record(**{"from": some(float), "to": some(float)}),
            )
        ),
        commands=some(str),
        load_before=_LOADS,
        load_after=_LOADS,
        notes=some(str),
    ),
    silent=_SILENT,
    files=having(_FILES, plan=maybe(str)),
)
AUDIT: Final = record(
    cluster=str,
    snapshot=str,
    snapshot_s=int,
    sound=bool,
    total=int,
    counts=mapping(int),
    findings=some(_FINDING),
    partitions=some(_AUDITED),
    sizes=mapping(some(int)),
    archives=maybe(int),
    read_bytes=int,
    compared_bytes=int,
    notes=some(str),
    files=_FILES,
)
