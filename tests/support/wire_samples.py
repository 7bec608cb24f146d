"""One request and one response of every command, as the golden vectors and other tests use them.

A change here, or in the files under tests/testdata/wire, is a change of the protocol.
"""

from typing import Final, NamedTuple

from google.protobuf.message import Message

from vq.errors import OffsetOutOfRange
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command


class Sample(NamedTuple):
    """Header and body of one frame."""

    message: Message
    body: bytes = b""


CORRELATION_ID: Final = 7
#: One record: length, checksum, id, flag, then a tag and a payload (docs of the log's format).
RECORD: Final = (
    bytes.fromhex("0000000d af56e6ab 0000000000000001 00000001 00000001 74") + b"vq says!"
)

#: A PUT that is sent again: `resend` (field 11) came later than the other fields.
RESEND: Final = Sample(
    wire.PutRequest(
        topic="orders",
        partition=3,
        record_count=1,
        crc=0x9045CF04,
        producer_id=7,
        epoch=3,
        topic_id="5f0c",
        resend=True,
    ),
    RECORD,
)

SAMPLES: Final[dict[tuple[Command, str], Sample]] = {
    (Command.HELLO, "request"): Sample(
        wire.HelloRequest(
            version_min=1, version_max=1, client_id="c1", library="vq-python 0.1.0", cluster="main"
        )
    ),
    (Command.HELLO, "response"): Sample(
        wire.HelloResponse(
            version=1,
            cluster="main",
            group="b1",
            node="n1",
            incarnation=4294967298,
            frame_bytes_max=16777216,
            broker_version="0.1.0",
            requests_in_flight_max=1024,
        )
    ),
    (Command.PROVE, "request"): Sample(
        wire.ProveRequest(group="b1", node="n2", nonce=bytes(range(32)), proof=b"\x01\x02\x03")
    ),
    (Command.PROVE, "response"): Sample(
        wire.ProveResponse(nonce=bytes(range(32, 64)), proof=b"\x04\x05\x06")
    ),
    (Command.AUTHENTICATE, "request"): Sample(  # RFC 7677, section 3
        wire.AuthenticateRequest(
            data=b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
    ),
    (Command.AUTHENTICATE, "response"): Sample(
        wire.AuthenticateResponse(data=b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    ),
    (Command.PING, "request"): Sample(wire.PingRequest()),
    (Command.PING, "response"): Sample(wire.PingResponse(wall_ms=1750000000000)),
    (Command.STATUS, "request"): Sample(
        wire.StatusRequest(
            with_partitions=True,
            after_topic="orders",
            after_partition=2,
            with_numbers=True,
            with_security=True,
        )
    ),
    (Command.STATUS, "response"): Sample(
        wire.StatusResponse(
            cluster="main",
            group="b1",
            node="n1",
            broker_version="0.1.0",
            uptime_ms=61000,
            epoch=3,
            master=True,
            partition_count=1,
            connections=2,
            messages_in=1000,
            bytes_in=128000,
            bytes_out=256000,
            flushes=40,
            disk_bytes_free=5000000000,
            disk_bytes_total=9000000000,
            partitions=[
                wire.PartitionStatus(
                    topic="orders",
                    partition=3,
                    log_start_offset=88,
                    log_end_offset=5000,
                    high_watermark=4900,
                    state="ro",
                    size_bytes=4912,
                    reason="being moved",
                    damage=[wire.DamagedRange(start=88, end=300, file="f", reason="r", found_ms=1)],
                    damaged_ranges=7,
                    not_copied="the disk is full",
                    min_insync=2,
                    flush_async=True,
                    replication_async=True,
                    held_by="group billing",
                    held_from=88,
                    held_bytes=4000,
                    held_since_ms=1763800001000,
                    end_unknown=True,
                    next_number=40,
                    number_known=True,
                )
            ],
            requests_waiting=5,
            problems=["new connections wait"],
            more=True,
            copies=[wire.CopyStatus(node="n2", partitions=1, bytes_behind=300, ms_behind=70)],
            follows="n3",
            diverged_files=2,
            diverged_bytes=9000,
            scrub_begun_ms=1763800000000,
            scrub_ended_ms=1763800009000,
            scrub_read_bytes=4000,
            scrub_bytes_per_s=4194304,
            scrub_next_ms=1764404800000,
            tls_expires_ms=1795336800000,
            security=wire.SecurityStatus(
                authentication="optional",
                authorization="permissive",
                tls="preferred",
                tls_client_certificates="none",
                loopback=True,
                zookeeper_tls=True,
                zookeeper_auth=True,
                super_users=["root"],
                connections=3,
                plain_connections=2,
                anonymous_connections=1,
                anonymous=[wire.AnonymousClient(host="10.0.0.7", client_id="shop", connections=1)],
                missing=[
                    wire.MissingRight(
                        user="anna",
                        right="write",
                        resource="topic:orders",
                        requests=90,
                        last_ms=1763800009000,
                        because="no rule allows it",
                        by_rule=True,
                        denied=True,
                    )
                ],
                missing_left_out=4,
            ),
            jobs=[
                wire.JobStatus(
                    name="scrub",
                    trigger="every 10 s",
                    state="off",
                    why_off="scrub_bytes_per_s is 0",
                    runs=12,
                    failures=3,
                    begun_ms=1763800000000,
                    ended_ms=1763800009000,
                    late_ms=1500,
                    error="the disk is full",
                    next_ms=1763800019000,
                )
            ],
            disks=[
                wire.DiskStatus(
                    directory="/var/lib/vq",
                    bytes_free=10,
                    bytes_total=100,
                    level="refuse",
                    growth_known=True,
                    growth_bytes_per_hour=-5,
                    fills=True,
                    full_in_s=3600,
                    excess_bytes=7,
                    files_free=5,
                    files_total=50,
                    file_system="boot 8:1",
                )
            ],
            repairs=2,
        )
    ),
    (Command.FIND, "request"): Sample(
        wire.FindRequest(
            topic="orders",
            partition=3,
            topic_id="5f0c",
            offset=88,
            end_offset=5000,
            message_id=241591910400000,
            key_kind=1,
            key=b"order-17",
            tags=["t", "u"],
            max_messages=100,
            max_bytes=1048576,
            max_searched_bytes=67108864,
            epoch=3,
            where="price > 10",
        )
    ),
    (Command.FIND, "response"): Sample(
        wire.FindResponse(
            offsets=[4000],
            append_ms=[1750000000000],
            offset=88,
            next_offset=5000,
            done=True,
            read_bytes=2000,
            skipped_bytes=2800,
            first_ms=1749999999000,
            last_ms=1750000001000,
            damage=[
                wire.DamagedRange(
                    start=188,
                    end=300,
                    file="/data/orders/3/0000000000000088.block",
                    reason="its control record is damaged",
                )
            ],
            log_start_offset=88,
            high_watermark=6000,
            epoch=3,
            unreachable=[wire.DamagedRange(start=300, end=400, file="f", reason="r")],
        ),
        RECORD,
    ),
    (Command.CANCEL, "request"): Sample(
        wire.CancelRequest(
            topic="_vq.delayed",
            partition=3,
            topic_id="5f0c",
            epoch=3,
            offset=88,
            message_id=241591910400000,
        )
    ),
    (Command.CANCEL, "response"): Sample(wire.CancelResponse(outcome=1)),
    (Command.TRANSACT, "request"): Sample(
        wire.TransactRequest(
            topic="_vq.transactions",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            transaction=241591910400000,
            number=1,
            state=3,
            parts=[
                wire.TransactionPart(
                    topic="orders",
                    partition=3,
                    topic_id="a07b",
                    record_count=1,
                    size=len(RECORD),
                    crc=0x11223344,
                    index=2,
                )
            ],
            client="billing",
            client_epoch=4,
            timeout_ms=60000,
            xid="1/a/b",
            max_wait_ms=8000,
            by="ada@desk",
            keep=True,
            checks=wire.TransactionChecks(
                group="orders", after_ms=6000, interval_ms=60000, most=15, many=True
            ),
            decision="9f0c2a6b1d3e4f50",
            decision_version=3,
        ),
        RECORD,
    ),
    (Command.TRANSACT, "response"): Sample(
        wire.TransactResponse(state=3, offsets=[4912, -1], by="ada@desk", stored=True)
    ),
    (Command.FENCE, "request"): Sample(
        wire.FenceRequest(
            topic="_vq.transactions", partition=5, topic_id="5f0c", epoch=3, client="billing"
        )
    ),
    (Command.FENCE, "response"): Sample(wire.FenceResponse(client_epoch=4)),
    (Command.TRANSACTIONS, "request"): Sample(
        wire.TransactionsRequest(
            topic="_vq.transactions",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            after=241591910400000,
            max_count=100,
            ended=True,
            xid="1/a/b",
            kept=True,
            messages=True,
        )
    ),
    (Command.TRANSACTIONS, "response"): Sample(
        wire.TransactionsResponse(
            transactions=[
                wire.TransactionStatus(
                    transaction=241591910400001,
                    state=3,
                    by="ada@desk",
                    client="billing",
                    client_epoch=4,
                    kept=True,
                    xid="1/a/b",
                    begun_ms=1750000000000,
                    ends_ms=1750000060000,
                    decided_ms=1750000000500,
                    parts=[
                        wire.TransactionPartStatus(
                            topic="orders",
                            partition=3,
                            messages=2,
                            size=4096,
                            stored=True,
                            offset=4912,
                        )
                    ],
                    checks=wire.TransactionCheckStatus(
                        group="orders", sent=15, most=15, next_ms=1750000060000, parked=True
                    ),
                )
            ],
            more=True,
        )
    ),
    (Command.RECEIVE, "request"): Sample(
        wire.ReceiveRequest(
            topic="_vq.shared",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            group="orders",
            member=0x1122334455667788,
            attempt=17,
            max_messages=100,
            lease_ms=30000,
            max_wait_ms=20000,
            open_max=2000,
            group_open_max=100000,
            sources=[
                wire.SharedSource(
                    topic="orders",
                    partition=3,
                    topic_id="7a1e",
                    begin=40,
                    end=52,
                    was_cut=True,
                    cut_at=51,
                    cuts=2,
                )
            ],
            keyed=True,
            keys=[wire.SharedKeys(source=0, first=41, grant=9, keys=[0x89ABCDEF, 0])],
        )
    ),
    (Command.RECEIVE, "response"): Sample(
        wire.ReceiveResponse(
            runs=[wire.SharedRun(source=0, first=41, messages=7, grant=9, deliveries=2)],
            lows=[40],
            waits=[wire.SharedRun(source=0, first=42, messages=1, grant=9)],
            keyed=True,
            waited_ms=1_500,
            cuts=[wire.SharedCut(source=0, cursor=55, cuts=3)],
        )
    ),
    (Command.SETTLE, "request"): Sample(
        wire.SettleRequest(
            topic="_vq.shared",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            group="orders",
            member=0x1122334455667788,
            sequence=4,
            sources=[wire.SharedSource(topic="orders", partition=3, topic_id="7a1e")],
            items=[
                wire.SettleItem(
                    run=wire.SharedRun(source=0, first=41, messages=6, grant=9), kind=1
                ),
                wire.SettleItem(
                    run=wire.SharedRun(source=0, first=47, messages=1, grant=9),
                    kind=2,
                    time_ms=1500,
                ),
            ],
        )
    ),
    (Command.SETTLE, "response"): Sample(
        wire.SettleResponse(
            lost=[wire.SharedRun(source=0, first=41, messages=2, grant=9)], lows=[43]
        )
    ),
    (Command.SHARED, "request"): Sample(
        wire.SharedRequest(
            topic="_vq.shared",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            group="orders",
            after_topic="orders",
            after_partition=2,
            max_count=100,
            forget=True,
            forget_topic="invoices",
        )
    ),
    (Command.SHARED, "response"): Sample(
        wire.SharedResponse(
            found=True,
            grants=9,
            members=2,
            receiving=1,
            sources=[
                wire.SharedSourceStatus(
                    topic="orders",
                    partition=3,
                    topic_id="7a1e",
                    low=40,
                    cursor=52,
                    open=8,
                    held=7,
                    waiting=1,
                    runs=2,
                    deliveries_max=2,
                    redelivered=5,
                )
            ],
            more=True,
        )
    ),
    (Command.CHECK, "request"): Sample(
        wire.CheckRequest(
            topic="_vq.transactions",
            partition=5,
            topic_id="5f0c",
            epoch=3,
            group="orders",
            instance=0x1122334455667788,
            max_wait_ms=20000,
            max_count=16,
            again=241591910400001,
        )
    ),
    (Command.CHECK, "response"): Sample(
        wire.CheckResponse(
            transactions=[
                wire.CheckedTransaction(
                    transaction=241591910400001,
                    check=2,
                    many=True,
                    parts=[
                        wire.TransactionPartStatus(
                            topic="orders",
                            partition=3,
                            messages=1,
                            size=len(RECORD),
                            stored=True,
                            offset=4912,
                        )
                    ],
                )
            ]
        ),
        RECORD,
    ),
    (Command.VERIFY, "request"): Sample(
        wire.VerifyRequest(
            topic="orders",
            partition=3,
            topic_id="5f0c",
            offset=5000,
            whole=True,
            begin=True,
            again=True,
        )
    ),
    (Command.VERIFY, "response"): Sample(
        wire.VerifyResponse(
            damage=[
                wire.DamagedRange(
                    start=4912,
                    end=5100,
                    file="/data/orders/3/0000000000000088.block",
                    reason="its control record is damaged",
                    found_ms=1750000000000,
                )
            ],
            running=True,
            begun_ms=1750000000000,
            verified_bytes=6000,
            total_bytes=9000,
            skipped_bytes=88,
            unverified="it is quarantined",
            repaired=1,
        )
    ),
    (Command.PUT, "request"): Sample(
        wire.PutRequest(
            topic="orders",
            partition=3,
            record_count=1,
            crc=0x9045CF04,
            producer_id=0x8000000000000001,
            producer_epoch=2,
            sequence=300,
            epoch=3,
            topic_id="5f0c",
        ),
        RECORD,
    ),
    (Command.PUT, "response"): Sample(wire.PutResponse(offset=5000000000, duplicate=True, epoch=3)),
    (Command.GET, "request"): Sample(
        wire.GetRequest(
            topic="orders",
            partition=3,
            offset=5000000000,
            max_bytes=1048576,
            max_wait_ms=15000,
            min_bytes=1,
            epoch=3,
            tags=["t", "ü"],
            validate=True,
            topic_id="5f0c",
            last_epoch=2,
            from_copy=True,
            archives=True,
            where="price > 10",
        )
    ),
    (Command.GET, "response"): Sample(
        wire.GetResponse(
            offset=5000000000,
            next_offset=5000000170,
            high_watermark=5000000170,
            log_start_offset=88,
            epoch=3,
            filtered=True,
            offsets=[5000000088],
            last_epoch=2,
            archive_url="s3://a/o.zip",
            archive_start=5000000000,
            archive_end=5000009000,
            archive_bytes=3210,
        ),
        RECORD,
    ),
    (Command.FETCH, "request"): Sample(
        wire.FetchRequest(
            session=2,
            sequence=300,
            max_bytes=8388608,
            max_wait_ms=15000,
            partitions=[
                wire.FetchPartition(handle=5, offset=5000000170, max_bytes=1048576, epoch=3),
                wire.FetchPartition(
                    handle=9,
                    offset=88,
                    max_bytes=65536,
                    epoch=3,
                    validate=True,
                    topic="orders",
                    partition=3,
                    topic_id="5f0c",
                    tags=["t", "ü"],
                    at_once=True,
                    last_epoch=2,
                    where="price > 10",
                ),
            ],
            removed=[7, 300],
            close=True,
            from_copy=True,
            again=True,
        )
    ),
    (Command.FETCH, "response"): Sample(
        wire.FetchResponse(
            results=[
                wire.FetchResult(
                    handle=5,
                    offset=5000000170,
                    next_offset=5000000203,
                    high_watermark=5000000291,
                    log_start_offset=88,
                    epoch=3,
                    size=33,
                ),
                wire.FetchResult(
                    handle=9,
                    offset=88,
                    next_offset=4000,
                    high_watermark=4900,
                    log_start_offset=88,
                    epoch=3,
                    size=33,
                    filtered=True,
                    offsets=[176],
                    last_epoch=2,
                ),
                wire.FetchResult(
                    handle=12,
                    offset=99,
                    status=29,
                    message="offset 99 is inside a record",
                    numbers={"next": 176},  # one entry: protobuf gives maps no order
                    texts={"state": "rw"},
                ),
            ]
        ),
        RECORD + RECORD,
    ),
    (Command.OFFSETS, "request"): Sample(
        wire.OffsetsRequest(
            topic="orders",
            partition=3,
            time_ms=1750000000000,
            by_time=True,
            count=True,
            from_offset=88,
            to_offset=5000,
            epoch=3,
            topic_id="5f0c",
            place=True,
            place_offset=4900,
            place_message_id=77,
            place_tags=["t"],
            place_epoch=2,
            number=True,
            number_offset=4900,
            by_number=True,
            at_number=30,
        )
    ),
    (Command.OFFSETS, "response"): Sample(
        wire.OffsetsResponse(
            earliest=88,
            latest=4900,
            log_end_offset=5000,
            offset=4900,
            count=12,
            count_exact=True,
            epoch=3,
            place=2,
            place_reason="message 76 lies there",
            end_unknown=True,
            number=28,
            number_known=True,
            offset_known=True,
            latest_number=29,
            latest_number_known=True,
        )
    ),
    (Command.SEAL, "request"): Sample(
        wire.SealRequest(topic="orders", partition=3, placement_version=9, topic_id="5f0c")
    ),
    (Command.SEAL, "response"): Sample(
        wire.SealResponse(end_offset=5000, producers=b"\x01\x02", next_number=40, number_known=True)
    ),
    (Command.ADOPT, "request"): Sample(
        wire.AdoptRequest(
            topic="orders",
            partition=3,
            topic_id="5f0c",
            start_offset=5000,
            producers=b"\x01\x02",
            placement_version=9,
            number=40,
            number_known=True,
        )
    ),
    (Command.ADOPT, "response"): Sample(wire.AdoptResponse()),
    (Command.REPLICATE, "request"): Sample(
        wire.ReplicateRequest(
            session=1,
            sequence=2,
            max_bytes=1048576,
            max_wait_ms=15000,
            partitions=[
                wire.FetchPartition(handle=4, offset=118, watch_above=118),
                wire.FetchPartition(handle=5, topic="orders", partition=3, topic_id="5f0c"),
            ],
            removed=[3],
            close=True,
            node="n2",
            incarnation=4294967298,
            epoch=3,
        )
    ),
    (Command.REPLICATE, "response"): Sample(
        wire.FetchResponse(
            results=[
                wire.FetchResult(
                    handle=5,
                    next_offset=34,
                    high_watermark=30,
                    epoch=3,
                    size=len(RECORD),
                    deleted_before=17,
                )
            ]
        ),
        RECORD,
    ),
    (Command.EPOCH_END, "request"): Sample(
        wire.EpochEndRequest(
            node="n2",
            incarnation=4294967298,
            epoch=3,
            topic="orders",
            partition=3,
            topic_id="5f0c",
            of_epoch=2,
            end=6000,
            new=True,
        )
    ),
    (Command.EPOCH_END, "response"): Sample(
        wire.EpochEndResponse(
            epoch=3,
            found=True,
            end_epoch=1,
            end_offset=5000,
            log_start_offset=200,
            producers=b"\x01\x02",
            next_start=7000,
            damaged=True,
            whole_end=4000,
            number=40,
            number_known=True,
        )
    ),
    (Command.HAND_OVER, "request"): Sample(wire.HandOverRequest(node="n2")),
    (Command.HAND_OVER, "response"): Sample(wire.HandOverResponse(node="n2")),
    (Command.DIVERGED, "request"): Sample(
        wire.DivergedRequest(
            file="orders/3/0000000000005000.diverged",
            position=88,
            max_bytes=65536,
            delete=True,
            after="orders/2/0000000000004212.diverged",
        )
    ),
    (Command.DIVERGED, "response"): Sample(
        wire.DivergedResponse(
            files=[
                wire.DivergedFile(
                    file="orders/3/0000000000005000.diverged",
                    topic="orders",
                    partition=3,
                    start_offset=5000,
                    end_offset=5120,
                    size_bytes=120,
                    messages=1,
                    first_epoch=3,
                    last_epoch=4,
                    first_append_ms=1750000000000,
                    last_append_ms=1750000000001,
                )
            ],
            more=True,
        ),
        RECORD,
    ),
    (Command.REPAIR, "request"): Sample(
        wire.RepairRequest(
            node="n2",
            topic="orders",
            partition=3,
            topic_id="5f0c",
            start=200,
            end=6000,
            max_bytes=65536,
        )
    ),
    (Command.REPAIR, "response"): Sample(
        wire.RepairResponse(end_offset=234, following=b"\x01\x02", epoch=3), RECORD
    ),
    (Command.BLOCKS, "request"): Sample(
        wire.BlocksRequest(topic="orders", from_topic="orders", from_partition=3, from_offset=200)
    ),
    (Command.BLOCKS, "response"): Sample(
        wire.BlocksResponse(
            group="b1",
            node="n1",
            master=True,
            logs=[
                wire.HeldLog(
                    topic="orders",
                    partition=3,
                    topic_id="5f0c",
                    directory="/var/lib/vq",
                    state="quarantined",
                    reason="a block is missing",
                    whole=True,
                    blocks=[
                        wire.HeldBlock(
                            start_offset=200,
                            end_offset=6000,
                            known=True,
                            first_append_ms=1750000000000,
                            last_append_ms=1750000000001,
                            messages=40,
                            open=True,
                            archived=True,
                            archive_bytes=900,
                            elsewhere=True,
                        )
                    ],
                )
            ],
            more=True,
            next_topic="orders",
            next_partition=3,
            next_offset=6000,
        )
    ),
    (Command.ARCHIVE, "request"): Sample(
        wire.ArchiveRequest(
            action=1,
            topic="orders",
            partition=3,
            start_offset=200,
            topic_id="5f0c",
            after_topic="orders",
            after_partition=2,
            after_offset=5000,
        )
    ),
    (Command.ARCHIVE, "response"): Sample(
        wire.ArchiveResponse(
            blocks=[
                wire.ArchivedBlock(
                    topic="orders",
                    partition=3,
                    start_offset=200,
                    end_offset=6000,
                    first_append_ms=1750000000000,
                    last_append_ms=1750000000001,
                    messages=40,
                    zip_bytes=900,
                    url="file:///mnt/archive/0000000000000200.zip",
                    topic_id="5f0c",
                )
            ],
            more=True,
            batches=9,
            problem="a chunk is damaged",
        )
    ),
}

#: The refusal of a GET, in place of its response.
ERROR: Final = OffsetOutOfRange(
    "offset 99 is outside [200, 300)", details={"earliest": 200, "latest": 300, "state": "rw"}
)
