"""What each command prints with ``--json``, as JSON Schema: for programs that read it.

``make docs`` writes one file for each into docs/reference/json; tests compare real output with
them. Later versions may add fields, and never change or take away those that are here.

The rules: a truth value is true or false, a size is in bytes (``_bytes``, or the name says it), a
time is in seconds (``_s``; a moment counts from 1970, UTC), nothing and unknown are null, several
things are a list. What may exceed 2**53 is text.
"""

from collections.abc import Mapping
from typing import Final

from vq.cli import report_schemas
from vq.cli.json_schema import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    having,
    mapping,
    maybe,
    optional,
    record,
    some,
)

_SETTINGS: Final = record(
    flush=TEXT,
    flush_interval_messages=WHOLE,
    flush_interval_s=NUMBER,
    retention_s=maybe(WHOLE),
    retention_bytes=maybe(WHOLE),
    retention_early_s=maybe(WHOLE),
    retention_policy=TEXT,
    archive_after_s=maybe(WHOLE),
    archive_to=maybe(TEXT),
    max_message_bytes=WHOLE,
    compression=TEXT,
    compression_threshold_bytes=WHOLE,
    replication=TEXT,
    min_insync=WHOLE,
    pool=TEXT,
    readable=TRUTH,
    writable=TRUTH,
)
_CLOSED_TOPIC: Final = record(
    topic=TEXT,
    id=TEXT,
    writable=TRUTH,
    changed=TRUTH,
    closed_s=maybe(NUMBER),
    partitions=some(record(partition=WHOLE, end=maybe(WHOLE))),
    unconfirmed=some(TEXT),
)
_ORIGIN: Final = record(
    created_s=maybe(NUMBER),
    created_by=maybe(record(client=TEXT, host=TEXT)),
    auto_created=maybe(TRUTH),
)
_PLACEMENT: Final = record(partition=WHOLE, group=maybe(TEXT), state=maybe(TEXT))
_DAMAGE: Final = record(
    group=TEXT,
    node=maybe(TEXT),
    start=WHOLE,
    end=WHOLE,
    file=TEXT,
    reason=TEXT,
    found_s=maybe(NUMBER),
)
_MOVES: Final = some(
    record(**{"topic": TEXT, "partition": WHOLE, "from": TEXT, "to": TEXT}, at_offset=maybe(WHOLE))
)
_MESSAGE: Final = optional(
    record(
        topic=TEXT,
        partition=WHOLE,
        offset=WHOLE,
        next_offset=WHOLE,
        id=TEXT,
        sent_s=NUMBER,
        tag=maybe(TEXT),
        key_type=maybe(TEXT),
        headers=mapping(TEXT),
    ),
    key={"type": ["string", "integer", "null"]},
    key_hex=TEXT,
    content=TEXT,
    content_base64=TEXT,
)
_CUT_FILE: Final = record(
    file=TEXT,
    group=TEXT,
    node=TEXT,
    topic=TEXT,
    partition=WHOLE,
    at_start=TRUTH,
    start_offset=WHOLE,
    end_offset=WHOLE,
    bytes=WHOLE,
    messages=WHOLE,
    first_epoch=WHOLE,
    last_epoch=WHOLE,
    first_written_s=NUMBER,
    last_written_s=NUMBER,
)
_DRAINED: Final = optional(
    record(group=TEXT),
    draining=TRUTH,
    partitions=WHOLE,
    node=TEXT,
    drained=TRUTH,
    master=TEXT,
    done=TRUTH,
    moves=_MOVES,
)
_RESET: Final = record(
    **{"topic": TEXT, "partition": WHOLE, "from": maybe(WHOLE), "to": WHOLE},
    skips=maybe(WHOLE),
    repeats=maybe(WHOLE),
    was_stopped=maybe(TEXT),
)
_PROGRESS: Final = record(
    topic=TEXT,
    partition=WHOLE,
    owner=maybe(TEXT),
    committed=maybe(WHOLE),
    start=maybe(WHOLE),
    end=maybe(WHOLE),
    lag_bytes=maybe(WHOLE),
    lag_messages=maybe(WHOLE),
    lag_s=maybe(NUMBER),
    committed_s=maybe(NUMBER),
    committed_by=maybe(TEXT),
    committed_epoch=maybe(WHOLE),
    committed_topic_id=maybe(TEXT),
    stopped=maybe(TEXT),
    stopped_at=maybe(WHOLE),
    stopped_since_s=maybe(NUMBER),
    needs_reset=TRUTH,
    other_topic=TRUTH,
    subscribed=TRUTH,
    readable=TRUTH,
    filter=maybe(TEXT),
    beyond_end=TRUTH,
    verdict=TEXT,
    cause=maybe(TEXT),
)
_NODE: Final = record(
    group=TEXT,
    node=maybe(TEXT),
    host=maybe(TEXT),
    pid=maybe(WHOLE),
    address=maybe(TEXT),
    rack=maybe(TEXT),
    metrics_port=maybe(WHOLE),
    role=maybe(TEXT),
    in_sync=maybe(TRUTH),
    lag_bytes=maybe(WHOLE),
    lag_s=maybe(NUMBER),
    epoch=maybe(WHOLE),
    partitions=WHOLE,
    connections=maybe(WHOLE),
    messages_in=maybe(WHOLE),
    uptime_s=maybe(WHOLE),
    answers=TRUTH,
    error=maybe(TEXT),
    pool=maybe(TEXT),
    labels=mapping(TEXT),
    draining=TRUTH,
    drained=maybe(TRUTH),
    version=maybe(TEXT),
    bytes_in=maybe(WHOLE),
    bytes_out=maybe(WHOLE),
    flushes=maybe(WHOLE),
    disk_bytes_free=maybe(WHOLE),
    disk_bytes_total=maybe(WHOLE),
    disks=maybe(
        some(
            record(
                directory=TEXT,
                bytes_free=maybe(WHOLE),
                bytes_total=maybe(WHOLE),
                level=TEXT,
                growth_bytes_per_hour=maybe(WHOLE),
                full_in_hours=maybe(NUMBER),
                excess_bytes=WHOLE,
                files_free=maybe(WHOLE),
                files_total=maybe(WHOLE),
                file_system=TEXT,
            )
        )
    ),
    problems=some(TEXT),
    bad_partitions=some(record(topic=TEXT, partition=WHOLE, state=TEXT, reason=TEXT)),
    damaged_ranges=maybe(WHOLE),
    damage=some(having(_DAMAGE, topic=TEXT, partition=WHOLE)),
    unsafe=some(record(kind=TEXT, text=TEXT, topics=some(TEXT), wrong=TRUTH)),
)

_ARCHIVED: Final = record(blocks=WHOLE, bytes=WHOLE, zip_bytes=WHOLE, failed=WHOLE, later=WHOLE)
_ARCHIVED_BLOCK: Final = record(
    topic=TEXT,
    partition=WHOLE,
    start=WHOLE,
    end=WHOLE,
    first_s=NUMBER,
    last_s=NUMBER,
    messages=WHOLE,
    bytes=WHOLE,
    zip_bytes=WHOLE,
    group=TEXT,
    node=TEXT,
    url=maybe(TEXT),
)
_NODE_RUN: Final = having(
    _ARCHIVED,
    group=TEXT,
    node=TEXT,
    state=maybe(TEXT),
    begun_s=maybe(NUMBER),
    ended_s=maybe(NUMBER),
    topics=mapping(having(_ARCHIVED, error=maybe(TEXT))),
    omitted_topics=WHOLE,
    unreadable=maybe(TEXT),
)

#: By the name of the command; of ``consume``, ``message get`` and ``cluster diverged FILE`` it is
#: the schema of each line. ``error`` and ``remark`` are lines of standard error.
SCHEMAS: Final[Mapping[str, Schema]] = {
    "standalone": record(
        zookeeper=TEXT,
        data=TEXT,
        brokers=some(
            record(group=TEXT, node=TEXT, address=TEXT, pid=WHOLE, log=TEXT, metrics=TEXT)
        ),
    ),
    "broker drain": _DRAINED,
    "broker undrain": _DRAINED,
    "broker remove": record(
        done=TRUTH,
        group=TEXT,
        node=maybe(TEXT),
        running=some(TEXT),
        open_partitions=WHOLE,
        topics=some(TEXT),
        ranges=some(record(topic=TEXT, partition=WHOLE, start=WHOLE, end=WHOLE)),
        obstacle=maybe(TEXT),
    ),
    "topic create": record(topic=TEXT, id=TEXT, created=TRUTH, partitions=some(_PLACEMENT)),
    "topic begin": record(
        done=TRUTH,
        topic=TEXT,
        partition=WHOLE,
        group=TEXT,
        offset=WHOLE,
        given_up=some(record(group=TEXT, start=WHOLE, end=maybe(WHOLE))),
        committed=maybe(WHOLE),
    ),
    "topic alter": record(topic=TEXT, partitions=WHOLE, **_SETTINGS["properties"]),
    "topic list": some(
        having(
            _ORIGIN,
            topic=TEXT,
            id=TEXT,
            partitions=WHOLE,
            flush=TEXT,
            replication=TEXT,
            min_insync=WHOLE,
            retention_s=maybe(WHOLE),
            writable=TRUTH,
            broker_groups=some(TEXT),
            closed_partitions=WHOLE,
        )
    ),
    "topic describe": record(
        topic=TEXT,
        id=TEXT,
        **_ORIGIN["properties"],
        **_SETTINGS["properties"],
        partitions=some(
            having(
                _PLACEMENT,
                earliest=maybe(WHOLE),
                latest=maybe(WHOLE),
                bytes=maybe(WHOLE),
                damaged=maybe(WHOLE),
                ranges=some(record(group=TEXT, start=WHOLE, end=maybe(WHOLE))),
                damage=some(_DAMAGE),
                reasons=some(TEXT),
                held=maybe(record(by=TEXT, start=WHOLE, bytes=WHOLE, since_s=maybe(NUMBER))),
            )
        ),
    ),
    "topic verify": some(
        record(
            topic=TEXT,
            partition=WHOLE,
            group=TEXT,
            node=maybe(TEXT),
            damaged=maybe(WHOLE),
            repaired=maybe(WHOLE),
            error=maybe(TEXT),
            read_bytes=maybe(WHOLE),
            skipped_bytes=maybe(WHOLE),
            damage=maybe(some(_DAMAGE)),
        )
    ),
    "topic move": record(done=TRUTH, moves=_MOVES),
    "topic heal-clock": record(done=TRUTH, moves=_MOVES),
    "topic close": _CLOSED_TOPIC,
    "topic open": record(topic=TEXT, id=TEXT, writable=TRUTH, changed=TRUTH),
    "topic drain": having(
        _CLOSED_TOPIC,
        drained=TRUTH,
        groups=some(
            record(
                group=TEXT,
                members=maybe(WHOLE),
                by_stream=TRUTH,
                done=TRUTH,
                lag_bytes=maybe(WHOLE),
                behind=some(
                    record(
                        partition=WHOLE,
                        owner=maybe(TEXT),
                        committed=maybe(WHOLE),
                        end=maybe(WHOLE),
                        lag_bytes=maybe(WHOLE),
                        lag_messages=maybe(WHOLE),
                        stopped=maybe(TEXT),
                    )
                ),
                error=maybe(TEXT),
            )
        ),
    ),
    "topic delete": record(
        done=TRUTH,
        topic=TEXT,
        partitions=WHOLE,
        bytes=WHOLE,
        exact=TRUTH,
        unreadable=maybe(TEXT),
        keeps_data=TRUTH,
        grace_s=WHOLE,
        deleted=TRUTH,
    ),
    "topic undelete": record(topic=TEXT, id=TEXT, partitions=WHOLE, changed=TRUTH),
    "topic list --deleted": some(
        record(
            topic=TEXT,
            id=TEXT,
            partitions=WHOLE,
            deleted_s=NUMBER,
            deleted_by=record(client=TEXT, host=TEXT),
            grace_s=WHOLE,
            left_s=WHOLE,
            gone_s=WHOLE,
        )
    ),
    "produce": record(
        topic=TEXT,
        sent=WHOLE,
        acknowledged=WHOLE,
        diverted=WHOLE,
        refused=WHOLE,
        unknown=WHOLE,
        failures=mapping(WHOLE),
        without_key=WHOLE,
        bytes=WHOLE,
        stored_bytes=maybe(WHOLE),
        compression_ratio=maybe(NUMBER),
        seconds=NUMBER,
    ),
    "consume": _MESSAGE,
    "message get": _MESSAGE,
    "message find": record(
        messages=some(optional(_MESSAGE, stored_s=NUMBER)),
        since_s=maybe(NUMBER),
        until_s=maybe(NUMBER),
        complete=TRUTH,
        stopped=maybe(TEXT),
        searched=some(
            record(
                partition=WHOLE,
                start=WHOLE,
                end=maybe(WHOLE),
                next_offset=WHOLE,
                done=TRUTH,
                read_bytes=WHOLE,
                skipped_bytes=WHOLE,
                first_stored_s=maybe(NUMBER),
                last_stored_s=maybe(NUMBER),
                gaps=some(record(start=WHOLE, end=maybe(WHOLE), kind=TEXT, reason=TEXT)),
            )
        ),
    ),
    "archive run": record(number=WHOLE, state=maybe(TEXT), nodes=some(_NODE_RUN)),
    "archive list": some(_ARCHIVED_BLOCK),
    "archive verify": some(
        having(
            _ARCHIVED_BLOCK,
            state=TEXT,
            batches=maybe(WHOLE),
            problem=maybe(TEXT),
            error=maybe(TEXT),
        )
    ),
    "archive restore": record(done=TRUTH, blocks=some(having(_ARCHIVED_BLOCK, error=maybe(TEXT)))),
    "archive export": record(topic=TEXT, file=TEXT, format=TEXT, messages=WHOLE, bytes=WHOLE),
    "archive history": some(
        having(
            _ARCHIVED,
            number=WHOLE,
            state=TEXT,
            as_of_s=NUMBER,
            started_s=NUMBER,
            due_s=maybe(NUMBER),
            by=TEXT,
            topic=maybe(TEXT),
            dry_run=TRUTH,
            error=maybe(TEXT),
            nodes=some(_NODE_RUN),
        )
    ),
    "group list": some(
        record(
            group=TEXT,
            topics=some(TEXT),
            members=WHOLE,
            model=TEXT,
            start=TEXT,
            unsubscribed=some(TEXT),
            by_stream=TRUTH,
            lag_bytes=maybe(WHOLE),
            lag_messages=maybe(WHOLE),
            lag_s=maybe(NUMBER),
            verdict=maybe(TEXT),
            cause=maybe(TEXT),
            lag_is_upper_bound=maybe(TRUTH),
        )
    ),
    "group describe": record(
        group=TEXT,
        model=TEXT,
        start=TEXT,
        topics=some(record(topic=TEXT, filter=maybe(TEXT))),
        deleted_topics=some(TEXT),
        unsubscribed=some(TEXT),
        by_stream=TRUTH,
        lag_is_upper_bound=TRUTH,
        lag_bytes=maybe(WHOLE),
        lag_messages=maybe(WHOLE),
        lag_s=maybe(NUMBER),
        members=some(
            record(
                member=TEXT,
                host=TEXT,
                pid=WHOLE,
                partitions=WHOLE,
                topics=some(TEXT),
                since_s=NUMBER,
            )
        ),
        partitions=some(_PROGRESS),
    ),
    "group reset": record(done=TRUTH, group=TEXT, partitions=some(_RESET)),
    "group forget": record(
        done=TRUTH, group=TEXT, topic=TEXT, partitions=WHOLE, members=some(TEXT)
    ),
    "group delete": record(
        done=TRUTH,
        group=TEXT,
        topics=some(TEXT),
        partitions=WHOLE,
        members=some(TEXT),
        unreadable=maybe(TEXT),
    ),
    "write list": some(record(write=TEXT)),
    "write end": record(done=TRUTH, write=TEXT),
    "cluster status": some(_NODE),
    "cluster scrub": some(
        record(
            group=TEXT,
            node=TEXT,
            read_bytes=maybe(WHOLE),
            stored_bytes=maybe(WHOLE),
            bytes_per_s=maybe(WHOLE),
            damaged_ranges=maybe(WHOLE),
            repairs=maybe(WHOLE),
            error=maybe(TEXT),
            begun_s=maybe(NUMBER),
            ended_s=maybe(NUMBER),
            next_s=maybe(NUMBER),
            running=maybe(TRUTH),
        )
    ),
    "cluster switch": record(group=TEXT, source=TEXT, target=TEXT, epoch=WHOLE),
    "cluster raise-epoch": record(done=TRUTH, group=TEXT, before=WHOLE, epoch=WHOLE),
    "cluster replace-secret": record(done=TRUTH),
    "cluster settings": record(
        delete_grace_s=WHOLE, auto_create=TRUTH, partitions=WHOLE, **_SETTINGS["properties"]
    ),
    "cluster diverged": some(_CUT_FILE),
    "cluster diverged --delete": having(_CUT_FILE, done=TRUTH),
    "cluster unclean": record(
        done=TRUTH,
        group=TEXT,
        node=TEXT,
        epoch=WHOLE,
        master=TEXT,
        insync=some(TEXT),
        topics=some(TEXT),
    ),
    "report lag": report_schemas.LAG,
    "report capacity": report_schemas.CAPACITY,
    "report audit": report_schemas.AUDIT,
    "bench": some(
        record(
            benchmark=TEXT,
            messages=WHOLE,
            seconds=NUMBER,
            per_second=maybe(WHOLE),
            bytes_per_s=maybe(WHOLE),
            **{f"{name}_s": maybe(NUMBER) for name in ("p50", "p90", "p99", "p99.9", "max")},
        )
    ),
    "doctor": some(record(check=TEXT, level=TEXT, detail=TEXT, remedy=maybe(TEXT))),
    "error": record(
        error=TEXT,
        outcome=TEXT,
        message=TEXT,
        status=maybe(WHOLE),
        hint=TEXT,
        retriable=TRUTH,
        details={"type": "object"},
    ),
    "remark": record(remark=TEXT),
}
