"""Writing DataFrames and streams into topics; decision 0066 says what is guaranteed.

A task is an attempt of a repeatable write of vq: its producer has an identity that stops earlier
attempts, and what those have stored is left out. All messages are acknowledged before the task's
commit message goes to the driver.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_vq.connection import factory_of
from pyspark_vq.errors import untraced
from pyspark_vq.options import Connect
from pyspark_vq.repeats import STORED_MAX, Repeats
from pyspark_vq.rows import check_columns, messages_of
from pyspark_vq.write_options import WriteOptions
from vq import Admin, Message, MessageProducer, ProducerConfig, SendResult
from vq.admin import WriteAttempt
from vq.errors import InvalidArgument, InvalidState, OffsetOutOfRange, VqError

#: Local properties of a task, which Spark sets for each micro-batch.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
#: Of a query's jobs: the run, which another start of the query does not have.
RUN_ID: Final = "spark.jobGroup.id"
#: Names of writes: of a stream, of a batch with and without a name of its own.
_STREAM: Final = "spark-stream-"
_NAMED: Final = "spark-write-"
_ONCE: Final = "spark-once-"
#: A batch write of which no driver has said in this time that it ended is forgotten.
ONCE_KEPT_S: Final = 30 * 24 * 3_600
#: The writes of streams that this process has begun, with the run of the query.
_begun: Final[set[tuple[Connect, str, str]]] = set()
#: Rows between two looks at whether a message has failed.
_LOOK_ROWS: Final = 1_000


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has done.

    Attributes:
        write: The name of the write that it is a task of.
        task: Its number.
        rows: Its rows.
        repeated: Those of them that an earlier attempt had stored.
        is_repeated: Whether there was an earlier attempt.
        is_first: Whether its process knew nothing yet of this run of the query, which may repeat a
            micro-batch.
    """

    write: str
    task: int
    rows: int = 0
    repeated: int = 0
    is_repeated: bool = False
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Which batch of which write a task belongs to."""

    write: str
    batch: int
    task: int


class _Outcome:
    """The callback of all messages of a task; runs on the factory's thread."""

    def __init__(self) -> None:
        self.stored = 0
        self.error: VqError | None = None

    def __call__(self, result: SendResult | None, error: VqError | None) -> None:
        if error is None:
            self.stored += 1
        elif self.error is None:
            self.error = error


class _Sink:
    """What both kinds of writers share; pickled to the tasks, so it is small."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        self._names = [each.name for each in schema.fields]
        if options.topic is not None and "topic" not in self._names:
            self._check_topic(options.topic)

    def _check_topic(self, topic: str) -> None:
        """Check that the topic of all rows takes messages, before there is a task.

        It is made if the settings of the cluster let producers make topics.

        Raises:
            UnknownTopic: There is none.
            TopicClosed: It takes no messages.
            CoordinationError: ZooKeeper does not answer.
        """
        with factory_of(self._options.connect).create_producer() as producer:
            producer.publish(topic)

    def _write(self, iterator: Iterator[pa.RecordBatch], place: Place) -> Written:
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Written(place.write, place.task)
        admin = factory_of(self._options.connect).admin
        attempt = None
        if self._options.idempotent:
            attempt = admin.begin_attempt(place.write, place.batch, place.task)
        task = _Task(self._options, admin, attempt, by_partition="partition" in self._names)
        with _Closing(task):
            task.send(self._messages(first))
            for batch in batches:
                task.send(self._messages(batch))
            task.finish()
        return Written(
            place.write,
            place.task,
            task.rows,
            task.rows - task.sent,
            bool(attempt and attempt.is_repeated),
        )

    def _messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        return messages_of(batch, self._names, self._options.topic)

    def _check_tasks(self, write: str, batch: int, done: Sequence[Written]) -> None:
        """Check that every task of which an attempt has begun has rows now.

        Raises:
            InvalidState: Some have none: the batch was repeated with other tasks.
        """
        begun = factory_of(self._options.connect).admin.tasks_begun(write, batch)
        missing = sorted(set(begun) - {each.task for each in done if each.rows})
        if missing:
            raise _changed(f"tasks {missing[:5]} had rows before and have none now", write, batch)


class _Task:
    """One attempt of one task."""

    def __init__(
        self,
        options: WriteOptions,
        admin: Admin,
        attempt: WriteAttempt | None,
        *,
        by_partition: bool,
    ) -> None:
        self.rows = self.sent = 0
        self._options = options
        self._admin = admin
        self._attempt = attempt
        self._repeats = Repeats(by_partition=by_partition)
        self._outcome = _Outcome()
        self._entered: set[str] = set()
        config = ProducerConfig(
            send_timeout_s=options.timeout_s,
            ordered=True,
            identity=None if attempt is None else attempt.identity,
            partitioner=_own_partition if by_partition else None,
        )
        self.producer: MessageProducer = factory_of(options.connect).create_producer(config)

    def send(self, messages: Iterable[Message]) -> None:
        """Send rows, without waiting for their outcome; wait for space when the buffer is full.

        Raises:
            VqError: A message is not accepted, or an earlier one has failed.
        """
        outcome, send = self._outcome, self.producer.send_async
        attempt, entered, repeats = self._attempt, self._entered, self._repeats
        if attempt is not None and attempt.is_repeated and not entered:
            for topic in attempt.topics:
                self._enter(attempt, topic)
        for message in messages:
            self.rows += 1
            if attempt is not None and message.topic not in entered:
                self._enter(attempt, message.topic)
            if repeats.left and repeats.met(message):
                continue
            send(message, outcome)
            self.sent += 1
            if not self.sent % _LOOK_ROWS:
                self._check()

    def _enter(self, attempt: WriteAttempt, topic: str) -> None:
        ranges = self._admin.enter_topic(attempt, topic, timeout=self._options.timeout_s)
        for partition, (start, end) in ranges.items():
            self._look(attempt, topic, partition, start, end)
        self._entered.add(topic)

    def _look(
        self, attempt: WriteAttempt, topic: str, partition: int, start: int, end: int
    ) -> None:
        """Note what earlier attempts have stored in a range."""
        while start < end:
            try:
                found = self._admin.read_written(
                    attempt, topic, partition, start, end, timeout=self._options.timeout_s
                )
            except OffsetOutOfRange as error:
                raise InvalidState(
                    f"{topic}-{partition}: what an earlier attempt of this task has stored can no "
                    f"longer be told, because messages behind offset {start} are deleted: {error}",
                    hint="option idempotent = false writes it again, with duplicates",
                ) from error
            for message in found.messages:
                self._repeats.add(message)
            if self._repeats.left > STORED_MAX:
                raise InvalidState(
                    f"an earlier attempt of this task has stored more than {STORED_MAX} messages; "
                    "one task cannot compare more",
                    hint="use more tasks; option idempotent = false writes it again, with "
                    "duplicates",
                )
            start = found.next_offset

    def finish(self) -> None:
        """Wait until every message is acknowledged.

        Raises:
            VqError: Some are not, or earlier attempts have stored other messages than these rows.
        """
        self.producer.flush()
        self._check()
        if self._outcome.stored != self.sent:
            raise InvalidState(
                f"{self.sent} messages were sent, {self._outcome.stored} are acknowledged"
            )
        if self._repeats.left and self._attempt is not None:
            raise _changed(
                f"{self._repeats.left} messages that an earlier attempt of task "
                f"{self._attempt.task} has stored are not among its rows now",
                self._attempt.write,
                self._attempt.batch,
            )

    def _check(self) -> None:
        if self._outcome.error is not None:
            raise self._outcome.error


class _Closing:
    """Closes a task's producer; an error of the task goes before one of the closing."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._task.producer.close()
        except VqError:
            if error is None:
                raise


def _changed(what: str, write: str, batch: int) -> InvalidState:
    return InvalidState(
        f"batch {batch} of {write} was repeated with other rows: {what}. Some may be stored twice",
        hint="repeat it with the same number of tasks and without functions such as rand(); option "
        "idempotent = false accepts duplicates",
    )


def written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return what the tasks of a job have done."""
    return [each for each in messages if isinstance(each, Written)]


def is_forgotten(write: str, now_s: float) -> bool:
    """Return whether a write is one without a name that its driver has not ended in 30 days."""
    begun = write.removeprefix(_ONCE).partition("-")[0]
    return write.startswith(_ONCE) and begun.isdecimal() and int(begun) < now_s - ONCE_KEPT_S


def _own_partition(message: Message, partitions: Any) -> int:
    return message.partition


def batch_sink(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return what writes a DataFrame.

    Raises:
        InvalidArgument: An option or column is unusable, or ``mode`` is not ``append``.
    """
    _check_appends(overwrite, 'mode("append")')
    return BatchSink(WriteOptions.parsed(options, stream=False), schema)


def stream_sink(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return what writes the micro-batches of a query.

    Raises:
        InvalidArgument: An option or column is unusable, or the output mode is ``complete``.
    """
    _check_appends(overwrite, 'outputMode("append")')
    return StreamSink(WriteOptions.parsed(options, stream=True), schema)


def _check_appends(overwrite: bool, wanted: str) -> None:
    if overwrite:
        raise InvalidArgument(f"a topic cannot be overwritten; use {wanted}")


class BatchSink(_Sink, DataSourceArrowWriter):
    """``df.write.format("vq").mode("append")``; see ``WriteOptions``."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check the columns; on the driver, before anything is sent."""
        super().__init__(options, schema)
        now = int(time.time())
        once = f"{_ONCE}{now}-{uuid.uuid4()}"
        self._once = options.write_id is None
        self._write_name = once if options.write_id is None else f"{_NAMED}{options.write_id}"
        if options.idempotent:
            admin = factory_of(options.connect).admin
            admin.begin_write(self._write_name)
            for name in admin.list_writes():
                if is_forgotten(name, now):
                    admin.end_write(name)

    @untraced
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task, on an executor."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return self._write(iterator, Place(self._write_name, self._options.batch_id, task))

    @untraced
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the write: all rows are stored."""
        if self._once:
            self._end()
        else:
            self._check_tasks(self._write_name, self._options.batch_id, written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the write: what is stored stays, and no attempt begins any more."""
        if self._once:
            self._end()

    def _end(self) -> None:
        if self._options.idempotent:
            try:
                factory_of(self._options.connect).admin.end_write(self._write_name)
            except VqError:
                pass  # a later write forgets it


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """``df.writeStream.format("vq")``; see ``WriteOptions``."""

    @untraced
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task of a micro-batch, on an executor."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or query is None or batch is None:
            raise InvalidState(f"Spark names no query and micro-batch here: {query!r}, {batch!r}")
        write = f"{_STREAM}{query}"
        is_first = self._options.idempotent and self._begin(
            write, context.getLocalProperty(RUN_ID) or ""
        )
        done = self._write(iterator, Place(write, int(batch), context.partitionId()))
        return replace(done, is_first=is_first)

    def _begin(self, write: str, run: str) -> bool:
        """Begin the write of a query, once in each worker process and run; return if it is new."""
        begun = self._options.connect, write, run
        is_first = begun not in _begun
        if is_first:
            factory_of(self._options.connect).admin.begin_write(write)
            _begun.add(begun)
        return is_first

    @untraced
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Check a micro-batch that may have been repeated; all its rows are stored."""
        done = written(messages)
        if any(each.is_repeated or each.is_first for each in done):
            self._check_tasks(done[0].write, batchId, done)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the micro-batch will be repeated."""
