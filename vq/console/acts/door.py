"""The door: whoever asks for an operation comes through here."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import sqlalchemy
from pydantic_core import to_jsonable_python
from sqlalchemy import Connection

from vq.console.accounts.accounts import AccountRole, now_ms
from vq.console.acts.masking import masked, masked_arguments
from vq.console.acts.table import OPERATIONS, Row
from vq.console.clusters.site import Site
from vq.console.database.database import Database, DatabaseFailed
from vq.console.database.schema import audit, masks
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger
from vq.operations.base.acts import acting_for
from vq.operations.operation import Effect
from vq.security.rules import Right
from vq.shown import shown_raised
from vq.tasks import begin_task

T = TypeVar("T")
#: What each role may ask for; whoever may act may also look.
RIGHTS: Final[Mapping[AccountRole, frozenset[Right]]] = {
    AccountRole.VIEWER: frozenset({Right.DESCRIBE, Right.READ}),
    AccountRole.OPERATOR: frozenset({Right.DESCRIBE, Right.READ, Right.WRITE, Right.MANAGE}),
    AccountRole.ADMIN: frozenset(Right),
}
#: Roles that may change something.
ACTING: Final = frozenset({AccountRole.OPERATOR, AccountRole.ADMIN})
#: Characters of arguments and results that the audit keeps.
_TEXT_MAX: Final = 20_000


class NotPermitted(VqError):
    """The role does not allow it."""

    hint = "ask somebody who manages accounts of the console for another role"


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks.

    Attributes:
        name: Of the account; "": nobody is logged in.
        role: What the person may do.
        address: Where the request comes from.
        token: Name of the account's token with which a program asks; "": a person does.
    """

    name: str
    role: AccountRole
    address: str
    token: str = ""

    @property
    def shown(self) -> str:
        """Who it is, for people."""
        if self.token:
            return f"token {self.token} of {self.name}"
        return self.name or "who is not logged in"

    def may(self, row: Row) -> bool:
        """Whether the person may ask for an operation."""
        return may(self.role, row)


def may(role: AccountRole, row: Row) -> bool:
    """Return whether a role allows an operation."""
    return row.right in RIGHTS[role] and (row.effect is not Effect.ACT or role in ACTING)


@dataclass(slots=True)
class LongAct:
    """An act that goes on while the person looks elsewhere.

    Attributes:
        number: Of this console since its start.
        act, subject: What it does, and to what.
        person: Who began it.
        cluster: Where.
        begun_ms, ended_ms: Milliseconds since 1970; None: it goes on.
        progress: What it said last of how far it is.
        result: What it returned; None: nothing, or not yet.
        error: Why it failed; "": it did not.
    """

    number: int
    act: str
    subject: str
    person: str
    cluster: str
    begun_ms: int
    ended_ms: int | None = None
    progress: Any = None
    result: Any = None
    error: str = ""
    task: asyncio.Task[Any] | None = field(default=None, repr=False)


#: Jobs that are remembered; the oldest that have ended are forgotten first.
JOBS_MAX: Final = 100
#: Jobs that go on at the same time.
RUNNING_MAX: Final = 20
#: Names of topics that the subject of an act has.
_NAMES_MAX: Final = 5
logger = get_logger(__name__)


class Door:
    """Runs operations for people. Loop-bound.

    Args:
        database: Has the audit: without it nothing is changed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.jobs: dict[int, LongAct] = {}
        self._numbers = 0
        self._starting = 0  # long acts that are being written down, and go on then

    def check(self, person: Person, name: str) -> Row:
        """Return the operation of a name.

        Raises:
            NotPermitted: The person may not ask for it.
        """
        row = OPERATIONS[name]
        if not person.may(row):
            raise NotPermitted(
                f"{name} needs the right to {row.right} (it {row.effect}); "
                f"{person.shown} is {person.role}"
            )
        return row

    async def run(
        self,
        person: Person,
        site: Site,
        name: str,
        /,
        *arguments: Any,
        before: Any = None,
        **named: Any,
    ) -> Any:
        """Run an operation and return its result; acts are written down before and after.

        Args:
            person: Who asks.
            site: On which cluster.
            name: Of the operation.
            *arguments, **named: Its arguments.
            before: What is there now, for the audit of an act.

        Raises:
            NotPermitted: The person may not.
            VqError: As the operation; or the audit cannot be written, and nothing was done.
        """
        row = self.check(person, name)
        if row.effect is not Effect.ACT:
            found = await row.function(site.cluster, *arguments, **named)
            if row.right is not Right.READ:
                return found
            return masked(found, await self.masks(site.name))
        bound = row.signature.bind(*arguments, **named).arguments
        entry = await self._begin(person, site.name, row.name, row.concerned, bound, before)
        return await self._carry_out(person, entry, row, site, arguments, named)

    async def each(
        self, person: Person, site: Site, name: str, /, *arguments: Any, **named: Any
    ) -> AsyncGenerator[Any, None]:
        """Run an operation that yields its results, and changes nothing.

        Raises:
            NotPermitted: The person may not.
        """
        row = self.check(person, name)
        assert row.effect is not Effect.ACT
        topics = await self.masks(site.name)
        found: AsyncGenerator[Any, None] = row.function(site.cluster, *arguments, **named)
        async with contextlib.aclosing(found):
            async for one in found:
                yield masked(one, topics)

    async def masks(self, cluster: str) -> Set[str]:
        """Return the topics of a cluster whose contents are shown to nobody."""
        query = sqlalchemy.select(masks.c.topic).where(masks.c.cluster == cluster)
        return await self._database.run(
            lambda connection: {each.topic for each in connection.execute(query)}
        )

    async def start(
        self,
        person: Person,
        site: Site,
        name: str,
        /,
        *arguments: Any,
        before: Any = None,
        on_end: Callable[[LongAct], Awaitable[None]] | None = None,
        **named: Any,
    ) -> LongAct:
        """Begin an act that takes long; return the job, which goes on without the browser.

        Raises:
            NotPermitted: The person may not.
            InvalidState: Too many go on.
            VqError: The audit cannot be written.
        """
        row = self.check(person, name)
        going = sum(each.ended_ms is None for each in self.jobs.values())
        if going + self._starting >= RUNNING_MAX:
            raise InvalidState(
                f"{RUNNING_MAX} long acts of this console go on, which is the most: wait for one"
            )
        bound = row.signature.bind(*arguments, **named).arguments
        self._starting += 1
        try:
            entry = await self._begin(person, site.name, row.name, row.concerned, bound, before)
        finally:
            self._starting -= 1
        self._numbers += 1
        subject = subject_of(bound, row.concerned)
        job = LongAct(self._numbers, name, subject, person.name, site.name, now_ms())
        self._forget_old()
        self.jobs[job.number] = job
        if "on_progress" in row.signature.parameters:
            named["on_progress"] = _note_progress(job)
        job.task = begin_task(self._work(job, person, entry, row, site, arguments, named, on_end))
        return job

    async def _work(
        self,
        job: LongAct,
        person: Person,
        entry: int,
        row: Row,
        site: Site,
        arguments: Any,
        named: Any,
        on_end: Callable[[LongAct], Awaitable[None]] | None,
    ) -> None:
        try:
            job.result = await self._carry_out(person, entry, row, site, arguments, named)
        except VqError as error:
            job.error = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - a task's outer edge
            job.error = shown_raised(error)
        except asyncio.CancelledError:
            job.error = "the console was stopped before it had ended"
            raise
        finally:
            job.ended_ms = now_ms()
            if on_end is not None:
                await on_end(job)

    async def stop(self) -> None:
        """End what goes on; the audit says that nobody knows how far it came."""
        going = [each.task for each in self.jobs.values() if each.task and each.ended_ms is None]
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    def _forget_old(self) -> None:
        ended = [each.number for each in self.jobs.values() if each.ended_ms is not None]
        for number in ended[: max(0, len(self.jobs) - JOBS_MAX + 1)]:
            del self.jobs[number]

    async def _carry_out(
        self, person: Person, entry: int, row: Row, site: Site, arguments: Any, named: Any
    ) -> Any:
        try:
            with acting_for(f"{person.shown} from {person.address}", person.name):
                result = await row.function(site.cluster, *arguments, **named)
        except VqError as error:
            outcome = "unknown" if type(error).__name__.endswith("Unknown") else "failed"
            await self._end(entry, outcome, error=f"{type(error).__name__}: {error}")
            raise
        except BaseException as error:
            await asyncio.shield(self._end(entry, "unknown", error=shown_raised(error)))
            raise
        await self._end(entry, "done", after=result)
        return result

    # The audit -------------------------------------------------------------------------------
    async def note(
        self, person: Person, act: str, subject: str, arguments: Mapping[str, Any]
    ) -> None:
        """Write down an act on the console itself that is done next, and cannot be refused."""
        await self.change(person, act, subject, arguments, lambda _connection: None)

    async def change(
        self,
        person: Person,
        act: str,
        subject: str,
        arguments: Mapping[str, Any],
        work: Callable[[Connection], T],
    ) -> T:
        """Change what the console keeps; return the result of the work.

        Raises:
            VqError: As the work; or the audit cannot be written, and nothing was done.
        """
        told = {"subject": subject, **arguments}
        entry = await self._begin(person, "", act, "subject", told, None)
        try:
            result = await self._database.run(work)
        except VqError as error:
            outcome = "unknown" if isinstance(error, DatabaseFailed) else "failed"
            await self._end(entry, outcome, error=f"{type(error).__name__}: {error}")
            raise
        await self._end(entry, "done")
        return result

    async def _begin(
        self,
        person: Person,
        cluster: str,
        act: str,
        concerned: str,
        arguments: Mapping[str, Any],
        before: Any,
    ) -> int:
        topics = await self.masks(cluster) if cluster else frozenset()
        values = {
            "time_ms": now_ms(),
            "person": person.name,
            "token": person.token or None,
            "address": person.address[:100],
            "cluster": cluster,
            "act": act,
            # PostgreSQL takes no NUL, and a name is looked at only after this
            "subject": subject_of(arguments, concerned)[:255].replace("\0", "␀"),
            "arguments": text_of(_told(masked_arguments(arguments, topics))),
            "before": "" if before is None else text_of(before),
            "after": "",
            "outcome": "begun",
            "error": "",
        }

        def insert(connection: Connection) -> int:
            key = connection.execute(audit.insert().values(**values)).inserted_primary_key
            assert key is not None
            return int(key[0])

        return await self._database.run(insert)

    async def _end(self, entry: int, outcome: str, *, after: Any = None, error: str = "") -> None:
        values = {
            "outcome": outcome,
            "after": "" if after is None else text_of(after),
            "error": error[:_TEXT_MAX],
            "ended_ms": now_ms(),
        }
        try:
            await self._database.run(
                lambda connection: connection.execute(
                    sqlalchemy.update(audit).where(audit.c.id == entry).values(**values)
                )
            )
        except DatabaseFailed as failed:  # what was done stays done, and is not to be done again
            logger.error(
                "outcome of an act is not in the audit",
                entry=entry,
                outcome=outcome,
                error=failed,
            )


def _note_progress(job: LongAct) -> Callable[..., None]:
    def note(*told: Any) -> None:
        job.progress = told[0] if len(told) == 1 else told

    return note


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if not callable(value)}


def subject_of(arguments: Mapping[str, Any], concerned: str) -> str:
    """Return what an act is about, for people: a topic, a group, a node."""
    value = arguments.get(concerned) if concerned else None
    if value is None:
        value = next((each for each in arguments.values() if isinstance(each, str | int)), "")
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list | tuple):  # of blocks, topics, moves: the topics
        names = dict.fromkeys(str(getattr(each, "topic", each)) for each in value)
        return ", ".join([*list(names)[:_NAMES_MAX], *["…"][: len(names) > _NAMES_MAX]])
    return text_of(value)


def text_of(value: Any) -> str:
    """Return a value as JSON, cut to a bound."""
    found = json.dumps(
        to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null"),
        ensure_ascii=False,
    )
    return found if len(found) <= _TEXT_MAX else f"{found[:_TEXT_MAX]}…"
