"""Options of ``format("vq")`` for writing: from texts to checked values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_vq.options import Connect, Given
from vq.errors import InvalidArgument

#: Longer than a broker needs to restart, or a broker group to change its master.
TIMEOUT_S: Final = 60.0
_TIMEOUT_S_MAX: Final = 3_600.0
BATCH_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where a DataFrame is written to, and how; docs/reference/spark.md has the table.

    Attributes:
        connect: Where the cluster is.
        topic: The topic of rows without one of their own; None: each row has one.
        idempotent: Whether what earlier attempts have stored is left out.
        write_id: The name of the write, for a batch that a program may repeat; None: it has none.
        batch_id: The number of the batch within that write.
        timeout_s: A message that could not be stored for so long fails the task.
    """

    connect: Connect
    topic: str | None
    idempotent: bool
    write_id: str | None
    batch_id: int
    timeout_s: float

    #: Spark hands over the last ones, which are its own, too.
    NAMES = (
        *Connect.NAMES,
        "topic",
        "idempotent",
        "writeId",
        "batchId",
        "timeout",
        "checkpointLocation",
        "path",
    )

    @classmethod
    def parsed(cls, options: Mapping[str, str], *, stream: bool) -> "WriteOptions":
        """Return checked options.

        Raises:
            InvalidArgument: One is unknown, or unusable, or does not fit to the others.
        """
        given = Given(options, cls.NAMES)
        batch_id = given.whole("batchId", 0, BATCH_ID_MAX)
        found = cls(
            connect=Connect.taken(given),
            topic=given.text("topic"),
            idempotent=given.flag("idempotent", default=True),
            write_id=given.text("writeId"),
            batch_id=batch_id or 0,
            timeout_s=given.seconds("timeout", TIMEOUT_S, _TIMEOUT_S_MAX),
        )
        given.text("checkpointLocation")
        if given.text("path") is not None:
            raise InvalidArgument("save() takes no path here; name the topic: option topic")
        given.end()
        if stream and (found.write_id is not None or batch_id is not None):
            raise InvalidArgument(
                "writeId and batchId are for batch writes; a stream has its query and micro-batch"
            )
        if batch_id is not None and found.write_id is None:
            raise InvalidArgument(f"batchId = {batch_id} needs writeId: which write has it?")
        if found.write_id is not None and not found.idempotent:
            raise InvalidArgument(
                f"writeId = {found.write_id!r} and idempotent = false exclude one another"
            )
        return found
