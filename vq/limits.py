"""Every bound of vq that more than one part must agree on, in one place.

A bound belongs here when two packages rely on it (a client refuses what the broker would refuse).
A bound that only one module knows stays in that module. Derived bounds are computed, and their
relations are asserted when this module is imported, so that a careless edit cannot start a broker.
"""

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Messages and batches -------------------------------------------------------------------------
#: Largest message payload before compression; a topic may set a smaller bound, never a larger one.
MESSAGE_BYTES_MAX: Final = 1 * MIB
#: Least payload that is compressed, if compression is on and neither producer nor topic says it.
COMPRESSION_THRESHOLD_BYTES: Final = 128 * KIB
#: Largest tag, in UTF-8 bytes. Tags are compared on the broker, so they stay short.
TAG_BYTES_MAX: Final = 255
#: Most tags in the filter of one subscription.
FILTER_TAGS_MAX: Final = 64
#: Longest expression of a filter in UTF-8, the most operands in it, and how deep NOT and
#: parentheses may stand inside one another. They bound what a reader can make a broker do.
FILTER_EXPRESSION_BYTES_MAX: Final = 4 * KIB
FILTER_TERMS_MAX: Final = 256
FILTER_DEPTH_MAX: Final = 32
#: Largest encoded properties (key, headers and the like) that an application gives a message.
PROPERTIES_BYTES_MAX: Final = 32 * KIB
#: Largest encoded properties of a stored record: a copy has some more, see ``reserved``.
STORED_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX + 4 * KIB
#: Bytes a record needs beside its payload: fixed header, two length fields, tag, properties.
RECORD_OVERHEAD_BYTES_MAX: Final = 20 + 4 + TAG_BYTES_MAX + 4 + STORED_PROPERTIES_BYTES_MAX
#: Largest sum of records in one batch (the control record in front of it not counted).
BATCH_BYTES_MAX: Final = 4 * MIB
#: Longest time for which a producer holds back a batch that is not full.
LINGER_MS_MAX: Final = 1_000
#: Longest time for which the end of a program waits for messages that are not sent.
EXIT_FLUSH_S_MAX: Final = 600
#: Longest time for which a broker lets a request wait for the quota of its user, and for which a
#: client waits after an answer that tells it to. All time-outs of clients are longer than both.
THROTTLE_S_MAX: Final = 4.0
#: Most records in one batch; bounds the work behind one acknowledgement.
BATCH_RECORDS_MAX: Final = 20_000

# Frames ---------------------------------------------------------------------------------------
#: Largest frame before HELLO is accepted: an unknown peer must not make the broker allocate more.
FRAME_BYTES_MAX_BEFORE_HELLO: Final = 4 * KIB
#: Largest frame afterwards.
FRAME_BYTES_MAX: Final = 16 * MIB
#: Largest header inside a frame: STATUS of thousands of partitions, the producers of SEAL.
FRAME_HEADER_BYTES_MAX: Final = 1 * MIB
#: A request whose header is larger counts with it while it waits for its answer, as with its body.
REQUEST_HEADER_FREE_BYTES: Final = 4 * KIB
#: Messages in one answer to FIND, and the bytes of their records.
FIND_MESSAGES_MAX: Final = 1_000
FIND_BYTES_MAX: Final = 4 * MIB
#: Bytes of a log that one FIND searches; what a key index rules out counts, too, and costs little.
#: The broker's time bounds what it reads.
FIND_SEARCHED_BYTES_MAX: Final = 4 * GIB
#: FINDs of one connection that may be under way, and of a whole node.
FINDS_PER_CONNECTION_MAX: Final = 8
FINDS_MAX: Final = 32
#: Archives that are verified or restored for one connection at a time, and for a whole node; each
#: holds some files open, and all take turns on one thread.
ARCHIVES_PER_CONNECTION_MAX: Final = 2
ARCHIVES_MAX: Final = 8
#: Largest offset that a request has room for.
OFFSET_MAX: Final = (1 << 64) - 1
#: Largest answer to one GET; leaves space for the frame around it.
FETCH_BYTES_MAX: Final = 8 * MIB
#: What an answer takes beside its bytes of what a partition was asked for with.
FETCH_ANSWER_BYTES: Final = 512
#: While so much of that is left, the partition counts as asked for again.
FETCH_AGAIN_BYTES: Final = 256 * KIB

# Producers ------------------------------------------------------------------------------------
#: Batches of one producer that the log remembers per partition, hence also the largest window:
#: a resend can only be recognised while its batch is among them.
PRODUCER_BATCHES_REMEMBERED: Final = 5
#: Largest producer epoch: 16 bits in a batch's header.
PRODUCER_EPOCH_MAX: Final = 0xFFFF
#: Producers remembered per partition; the least recently used one is forgotten first.
PRODUCERS_PER_PARTITION_MAX: Final = 4_096

# Transactions ---------------------------------------------------------------------------------
#: Longest time for which a transaction may be open, and the usual one.
TRANSACTION_TIMEOUT_MS_MAX: Final = 15 * 60_000
TRANSACTION_TIMEOUT_S_DEFAULT: Final = 60.0
#: Bytes of records of one transaction, and partitions that they go to. What it has for one
#: partition is stored there as one batch.
TRANSACTION_BYTES_MAX: Final = 64 * MIB
TRANSACTION_PARTS_MAX: Final = 1_000
#: Bytes of records of one request of a transaction; there is room for what is noted beside it.
TRANSACT_BYTES_MAX: Final = BATCH_BYTES_MAX - 512 * KIB
#: Longest name of a transaction in other resources, and longest transactional id.
XID_CHARS_MAX: Final = 400
#: Each of the two parts of such a name in X/Open XA.
XID_BYTES_MAX: Final = 64
TRANSACTIONAL_ID_CHARS_MAX: Final = 200
#: When a producer is asked what is to become of a half message: first, and again and again; bounds
#: of both; for how long; and how often, before it is parked.
CHECK_AFTER_S_DEFAULT: Final = 6.0
CHECK_INTERVAL_S_DEFAULT: Final = 60.0
CHECK_S_MIN: Final = 1.0
CHECK_S_MAX: Final = 86_400.0
CHECK_TIMEOUT_S_DEFAULT: Final = 30.0
CHECK_TIMEOUT_S_MAX: Final = 3_600.0
CHECKS_DEFAULT: Final = 15
CHECKS_MAX: Final = 1_000
#: Half messages in one answer, if their records have no more bytes than those of one request.
CHECKS_PER_ANSWER_MAX: Final = 16

# Shared groups --------------------------------------------------------------------------------
#: For how long a member has a message without saying more.
SHARED_LEASE_MS_MIN: Final = 100
SHARED_LEASE_MS_MAX: Final = 12 * 3_600_000
#: Messages of one answer to RECEIVE; partitions that a RECEIVE or SETTLE names; runs of a SETTLE.
SHARED_MESSAGES_PER_RECEIVE_MAX: Final = 10_000
SHARED_SOURCES_PER_REQUEST_MAX: Final = 1_000
SHARED_RUNS_PER_SETTLE_MAX: Final = 1_000
#: Messages of one partition that were delivered and are not done, and those of a whole group. What
#: is open of a partition goes into one record.
SHARED_OPEN_MAX: Final = 20_000
#: With the order of keys it is looked at each of them again and again.
SHARED_KEYED_OPEN_MAX: Final = 1_000
SHARED_GROUP_OPEN_MAX: Final = 1_000_000

# Broker groups --------------------------------------------------------------------------------
#: Largest epoch of a master: the wire and the batches have 32 bits for it.
EPOCH_MAX: Final = 2**32 - 1

# Topics and names -----------------------------------------------------------------------------
PARTITIONS_PER_TOPIC_MAX: Final = 4_096
#: Most partitions of a topic that a producer creates: one transaction of ZooKeeper makes them.
AUTO_CREATE_PARTITIONS_MAX: Final = 500
NAME_CHARS_MAX: Final = 200
TOPIC_ID_CHARS_MAX: Final = 32
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{TOPIC_ID_CHARS_MAX}}}")

# Connections ----------------------------------------------------------------------------------
CONNECTIONS_MAX: Final = 10_000
CONNECTIONS_PER_ADDRESS_MAX: Final = 1_000
CONNECTIONS_BEFORE_HELLO_MAX: Final = 256
CONNECTIONS_BEFORE_HELLO_PER_ADDRESS_MAX: Final = 128
#: Requests of one connection that may wait for an answer; as many reads (GET, FETCH) may wait
#: beside them.
REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: Final = 1_024
#: Partitions added or asked for again by one FETCH, and results in one answer.
FETCH_PARTITIONS_PER_REQUEST_MAX: Final = 1_024
#: What a broker remembers for the fetch sessions of one connection: each session and each of its
#: partitions counts 512 bytes, each tag 64 and its own, each operand of an expression 512.
FETCH_STATE_BYTES_PER_CONNECTION_MAX: Final = 16 * MIB
FETCH_STATE_ENTRY_BYTES: Final = 512
FETCH_STATE_TAG_BYTES: Final = 64
FETCH_STATE_TERM_BYTES: Final = 512
#: Bytes of PUT bodies of one connection that may wait for a flush before reading pauses.
PUT_BYTES_IN_FLIGHT_PER_CONNECTION_MAX: Final = 32 * MIB
#: Longest hold of a GET that waits for data.
LONG_POLL_S_MAX: Final = 30.0
LONG_POLL_S_DEFAULT: Final = 15.0
HELLO_TIMEOUT_S: Final = 10.0
#: A frame must be whole within this time of its first byte.
FRAME_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 600.0
#: A response that the peer does not take within this time closes the connection.
WRITE_TIMEOUT_S: Final = 30.0

#: Longest time-out that a client waits out, some 11 days; a larger or endless one counts as this
#: one, since not every lock, socket and timer takes more.
TIMEOUT_S_MAX: Final = 1e6
#: The most messages that one call takes.
MANY_MAX: Final = 100_000
#: How long a message can be delayed: 40 days.
DELAY_S_MAX: Final = 40 * 86_400

# Load -----------------------------------------------------------------------------------------
#: How often a broker measures its load and, if it has changed, writes it to ZooKeeper.
LOAD_INTERVAL_S_DEFAULT: Final = 5.0
LOAD_INTERVAL_S_MAX: Final = 10.0
#: A broker whose load does not change writes it again at its first measurement after this time.
LOAD_IDLE_INTERVAL_S: Final = 12.0
#: How often a producer that follows the load reads it.
LOAD_READ_INTERVAL_S: Final = 5.0
#: A capacity that was estimated while the broker was less busy is only a lower bound.
LOAD_BUSY_MIN: Final = 0.05
#: Both intervals are spread by this part, so that brokers and producers do not act in step.
LOAD_JITTER: Final = 0.2
#: A load that was not written again for so long counts as unknown.
LOAD_STALE_S: Final = 30.0

# Message ids ----------------------------------------------------------------------------------
ID_TIME_BITS: Final = 40
ID_SLOT_BITS: Final = 13
ID_SEQUENCE_BITS: Final = 10
SLOTS_MAX: Final = 1 << ID_SLOT_BITS

assert MESSAGE_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX <= BATCH_BYTES_MAX
assert BATCH_BYTES_MAX + FRAME_HEADER_BYTES_MAX + 20 <= FRAME_BYTES_MAX
assert FETCH_BYTES_MAX + FRAME_HEADER_BYTES_MAX + 20 <= FRAME_BYTES_MAX
assert MESSAGE_BYTES_MAX + RECORD_OVERHEAD_BYTES_MAX <= FIND_BYTES_MAX <= FETCH_BYTES_MAX
assert FIND_MESSAGES_MAX * 20 < FRAME_HEADER_BYTES_MAX // 2, "places of the messages found"
assert BATCH_BYTES_MAX < FETCH_BYTES_MAX, "one GET must be able to carry the largest batch"
assert (
    PARTITIONS_PER_TOPIC_MAX * 4 * FETCH_STATE_ENTRY_BYTES < FETCH_STATE_BYTES_PER_CONNECTION_MAX
), "one client can wait for every partition of several topics"
assert (
    LOAD_IDLE_INTERVAL_S + (1 + LOAD_JITTER) * (LOAD_INTERVAL_S_MAX + LOAD_READ_INTERVAL_S)
    <= LOAD_STALE_S
), "a reader sees each write of an idle broker before the one before it is stale"
assert ID_TIME_BITS + ID_SLOT_BITS + ID_SEQUENCE_BITS == 63


def is_valid_name(name: str) -> bool:
    """Whether ``name`` may name a topic, group, node, client or cluster.

    1 to 200 characters of ``A-Z a-z 0-9 . _ -``, and neither ``.`` nor ``..``: names become
    directory names and znode names.
    """
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_topic_id(text: object) -> bool:
    """Whether ``text`` may be the id of a topic: 1 to 32 characters of ``A-Z a-z 0-9 _ -``.

    Ids become parts of names of files, and of URLs.
    """
    return isinstance(text, str) and _TOPIC_ID.fullmatch(text) is not None


#: Most nodes of a broker group that a topic can ask to be in sync.
MIN_INSYNC_MAX = 7
