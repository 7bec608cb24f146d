"""The record of an act: written before it begins, and its outcome after it.

``audited`` is the one place that writes it. It wraps the function of each operation that needs the
right to manage, so commands, both APIs and the console pass it. An act inside an act has no record
of its own.

    audit/acts is missing         acts have no record: no broker of this version has started yet
    the record cannot be written  the act is not carried out
    the outcome cannot be         the record stays without one: ``vq audit list`` says "begun"
    written

No record has a secret: arguments with the name of one are left out, and of values only texts,
numbers and what is made of them are told.
"""

import asyncio
import contextlib
import enum
import functools
import inspect
import itertools
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import fields
from pathlib import PurePath
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from vq.client.cluster import ClusterClient
from vq.coordination.tree.acls import acl_of
from vq.coordination.tree.coordinator import NoNode, Unreadable
from vq.coordination.tree.paths import ACTS
from vq.coordination.tree.single import read_single
from vq.coordination.tree.values.access import AccessList
from vq.coordination.tree.values.audit import ActOutcome, ActRecord
from vq.coordination.tree.values.brokers import BrokerGroup
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.identities import Identities
from vq.coordination.tree.values.quotas import QuotaList
from vq.coordination.tree.values.topics import TopicNode
from vq.coordination.tree.values.users import StoredUser
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    OutcomeUnknown,
    UnknownTopic,
    VqError,
)
from vq.limits import is_valid_name
from vq.log_lines import get_logger
from vq.model import TopicSettings
from vq.operations.base.metadata_quota import check_metadata, metadata_limit
from vq.operations.base.who import who
from vq.security.quotas import Quota
from vq.security.rules import AccessRule
from vq.shown import shown_raised

logger = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Act = Callable[Concatenate[ClusterClient, P], Coroutine[Any, Any, R]]
#: Takes the arguments of an act by their names.
CountPartitions = Callable[[ClusterClient, Mapping[str, Any]], Awaitable[int]]

#: Characters of each text of a record.
TEXT_MAX: Final = 4_000
#: Entries of a list or map that a record has, and how deep it looks.
_ENTRIES_MAX: Final = 50
_DEPTH_MAX: Final = 5
#: How long the end of a cancelled act waits for its outcome to be written.
_END_S: Final = 5.0
#: Arguments that are never told.
_SECRET: Final = re.compile(r"password|secret|auth|token|private|identities", re.IGNORECASE)
#: The user and the password in a URL: a password may have a slash, an ``@`` or a space.
_IN_URL: Final = re.compile(r"""(?<=://)(?:[^\s"']*|[^@"'\n]*)@""")
#: A secret among the parameters of a URL.
_IN_QUERY: Final = re.compile(
    r"""(?<=[?&])([\w.-]*(?:password|passwd|secret|auth|token|sig)[\w.-]*)=[^&\s"']*""",
    re.IGNORECASE,
)


class ActNotRecorded(CoordinationError):
    """The record of an act could not be written, so the act was not carried out."""

    hint = (
        "ZooKeeper must take the record first: `vq doctor` looks at it; "
        "docs/howto/see-what-operators-did.md says who may write records"
    )


class About(enum.StrEnum):
    """What an act is about, so what there was before it and after it; the names of arguments."""

    TOPIC = "topic"
    GROUP = "group"
    BROKERS = "brokers"
    USER = "user"
    RULES = "rules"  # those with the subjects and resources that it names
    QUOTAS = "quotas"  # those of the subjects that it names
    SETTINGS = "settings"
    ACLS = "acls"  # of the whole tree, and so of its own record
    NOTHING = ""  # the arguments say all


#: Acts of this process, so that those of one millisecond have an order.
_numbers: Final = itertools.count()
_NUMBERS: Final = 1_000_000
_inside: ContextVar[bool] = ContextVar("vq_inside_act", default=False)
_person: ContextVar[str] = ContextVar("vq_acting_for", default="")
_account: ContextVar[str] = ContextVar("vq_acting_account", default="")


@contextlib.contextmanager
def acting_for(person: str, account: str = "") -> Iterator[None]:
    """Have records of acts say for whom this process acts, such as a person at a console.

    ``account``: the user whose quota ``metadata`` acts count for; "": that of this process.
    """
    tokens = _person.set(person), _account.set(account)
    try:
        yield
    finally:
        _person.reset(tokens[0])
        _account.reset(tokens[1])


def acting_user(cluster: ClusterClient) -> str:
    """Return the user whose quota ``metadata`` acts count for now; "": nobody's."""
    return _account.get() or cluster.login.user


def audited(
    about: About = About.NOTHING, of: str = "", *, partitions: CountPartitions | None = None
) -> Callable[[Act[P, R]], Act[P, R]]:
    """Have a function of an operation leave a record.

    Args:
        about: What it is about.
        of: The argument with its name; "": that of ``about``.
        partitions: Returns how many it will make or move, for whose user has a quota of that; None:
            none.
    """

    def decorate(function: Act[P, R]) -> Act[P, R]:
        signature = inspect.signature(function)
        subject = of or str(about)
        act = cast("Callable[..., Coroutine[Any, Any, R]]", function)

        @functools.wraps(function)
        async def run(cluster: ClusterClient, *arguments: P.args, **named: P.kwargs) -> R:
            if _inside.get():
                return await function(cluster, *arguments, **named)
            token = _inside.set(True)
            try:
                if not await _is_on(cluster, function.__name__):
                    return await function(cluster, *arguments, **named)
                try:
                    call = signature.bind(cluster, *arguments, **named)
                except TypeError as error:  # as Python says it of a call
                    raise TypeError(f"{function.__name__}() {error}") from None
                for name, value in call.arguments.items():
                    if isinstance(value, Iterator):  # it can be read once: the record does, too
                        call.arguments[name] = list(value)
                bound = dict(call.arguments)
                del bound[next(iter(bound))]
                recorded = _Recorded(cluster, function.__name__, about, bound, subject)
                if partitions is not None:
                    await recorded.count(partitions)
                if not await recorded.begin():
                    return await act(*call.args, **call.kwargs)
                return await recorded.carry_out(act(*call.args, **call.kwargs))
            finally:
                _inside.reset(token)

        run.__dict__["audited"] = about
        return cast("Act[P, R]", run)

    return decorate


async def _is_on(cluster: ClusterClient, name: str) -> bool:
    """Return whether there is a place for records.

    Raises:
        ActNotRecorded: ZooKeeper does not say.
    """
    try:
        return await cluster.coordinator.exists(ACTS) is not None
    except CoordinationError as error:
        raise _not_recorded(name, error) from error


def _not_recorded(name: str, error: CoordinationError) -> ActNotRecorded:
    return ActNotRecorded(
        f"{name} was not carried out, because it could not be written down: {error}"
    )


def is_audited(function: Callable[..., Any]) -> bool:
    """Whether a function leaves a record."""
    return "audited" in vars(function)


class _Recorded:
    """One act, and its two nodes."""

    def __init__(
        self,
        cluster: ClusterClient,
        name: str,
        about: About,
        arguments: Mapping[str, Any],
        subject: str,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._arguments = arguments
        found = arguments.get(subject)
        self._subject = found if isinstance(found, str) and is_valid_name(found) else ""
        self._about = about
        self._act = ""
        self._time_ms = cluster.clock.wall_ms()
        self._charged = ""
        self._limit = 0.0
        self._partitions = 0
        self._is_begun = False  # its quota lets it begin

    async def count(self, partitions: CountPartitions) -> None:
        """Count what it will make or move, if its user has a quota of that.

        Raises:
            ActNotRecorded: ZooKeeper does not say.
        """
        user = acting_user(self._cluster)
        try:
            limit = await metadata_limit(self._cluster, user)
            if limit is None:
                return
            with contextlib.suppress(
                InvalidArgument, InvalidState, UnknownTopic
            ):  # the act says so
                self._partitions = await partitions(self._cluster, self._arguments)
        except CoordinationError as error:
            raise _not_recorded(self._name, error) from error
        self._charged, self._limit = user, limit

    async def begin(self) -> bool:
        """Write the record; False: there is nowhere to write it.

        Raises:
            ActNotRecorded: It could not be written.
        """
        cluster = self._cluster
        now_ms = self._time_ms
        self._act = f"{now_ms:013d}-{next(_numbers) % _NUMBERS:06d}-{secrets.token_hex(3)}"
        try:
            record = ActRecord(
                time_ms=now_ms,
                who=who(),
                user=cluster.login.user,
                identity=cluster.config.zookeeper_auth.partition(":")[0],
                person=_person.get(),
                act=self._name,
                subject=self._subject or _subject_of(self._arguments),
                arguments=_text(_told(self._arguments)),
                before=await self._state(),
                charged=self._charged,
                partitions=self._partitions,
            )
            await cluster.coordinator.create(ActRecord.path(self._act), record.encode())
        except NoNode:
            return False
        except CoordinationError as error:
            raise _not_recorded(self._name, error) from error
        return True

    async def carry_out(self, work: Coroutine[Any, Any, R]) -> R:
        """Wait for the act, write down what became of it, and return its result.

        Raises:
            Throttled, InvalidArgument: It is more than the quota ``metadata`` of its user allows.
        """
        try:
            if self._partitions:
                await self._check_quota(work)
            self._is_begun = True
            result = await work
        except VqError as error:
            outcome = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
            await self._end(outcome, f"{type(error).__name__}: {error}")
            raise
        except BaseException as error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await asyncio.shield(self._end("unknown", shown_raised(error)))
            raise
        await self._end("done", "")
        return result

    async def _check_quota(self, work: Coroutine[Any, Any, R]) -> None:
        """Look at earlier acts; the record of this one is written, so that later ones see it."""
        try:
            await check_metadata(
                self._cluster,
                self._charged,
                self._limit,
                self._partitions,
                act=self._act,
                now_ms=self._time_ms,
            )
        except BaseException:
            work.close()
            raise

    async def _end(self, outcome: str, error: str) -> None:
        try:
            ended = ActOutcome(
                time_ms=self._cluster.clock.wall_ms(),
                outcome=outcome,
                error=_cleaned(error)[:TEXT_MAX],
                after=await self._state(),
                refused=not self._is_begun,
            )
            path = ActOutcome.path(self._act)
            await self._cluster.coordinator.create(path, ended.encode())
            if self._about is About.ACLS:
                await self._set_acl(path)
        except CoordinationError as failed:  # what was done stays done
            logger.error(
                "outcome of an act is not in the audit",
                act=self._name,
                record=self._act,
                outcome=outcome,
                error=failed,
            )

    async def _set_acl(self, path: str) -> None:
        """Give a node the ACL that holds now: this client may not have heard of it yet."""
        coordinator = self._cluster.coordinator
        found = await read_single(coordinator, Identities)
        await coordinator.set_acl(path, acl_of(path, None if found is None else found[0]))

    async def _state(self) -> str:
        """Return what there is of the subject now; "": nothing."""
        path = _path_of(self._about, self._subject)
        if path is None:
            return ""
        try:
            data = (await self._cluster.coordinator.get(path)).data
        except (NoNode, Unreadable):  # or it is not for this client: then the act says so
            return ""
        shown = _SHOWN.get(self._about)
        if shown is not None:
            try:
                found = shown(path, data, self._arguments)
            except CoordinationError:
                found = {"unreadable": True}
            return _text(found) if found else ""
        return _cleaned(data.decode("utf-8", "replace"))[:TEXT_MAX]


def _path_of(about: About, name: str) -> str | None:
    whole = _WHOLE.get(about)
    if whole is not None:
        return whole
    if not name:
        return None
    match about:
        case About.TOPIC:
            return TopicNode.path(name)
        case About.GROUP:
            return ConsumerGroup.path(name)
        case About.BROKERS:
            return BrokerGroup.path(name)
        case About.USER:
            return StoredUser.path(name)
    return None


#: What is one node, whatever the act names of it.
_WHOLE: Final[Mapping[About, str]] = {
    About.RULES: AccessList.path(),
    About.QUOTAS: QuotaList.path(),
    About.SETTINGS: ClusterSettings.path(),
}


def _of_user(path: str, data: bytes, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user without its salt and keys."""
    user = StoredUser.decode(path, data)
    since = [each.since_ms for each in user.secrets]
    return {"roles": list(user.roles), "passwords_since_ms": since, "by": user.by}


def _of_rules(path: str, data: bytes, arguments: Mapping[str, Any]) -> Any:
    """Return the rules with a subject and a resource that the act names."""
    named = {(words[1], words[-1]) for words in _named(arguments["rules"]) if len(words) > 1}
    rules = AccessList.decode(path, data).rules
    return plain([each for each in rules if (each.subject, each.about) in named])


def _of_quotas(path: str, data: bytes, arguments: Mapping[str, Any]) -> Any:
    """Return the quotas of the subjects that the act names."""
    named = {words[0] for words in _named(arguments["quotas"]) if words}
    return plain([each for each in QuotaList.decode(path, data).quotas if each.subject in named])


def _named(values: Any) -> list[list[str]]:
    """Return the words of each rule or quota; of what is none, nothing: the act refuses it."""
    several = values if isinstance(values, list | tuple | set | frozenset) else ()
    return [str(each).split() for each in several if isinstance(each, str | AccessRule | Quota)]


#: Of nodes that have secrets, or more than the act is about: what is told of them.
_SHOWN: Final[Mapping[About, Callable[[str, bytes, Mapping[str, Any]], Any]]] = {
    About.USER: _of_user,
    About.RULES: _of_rules,
    About.QUOTAS: _of_quotas,
}


def _told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: "(not told)" if _SECRET.search(name) else plain(value)
        for name, value in arguments.items()
        if not callable(value)
    }


def plain(value: Any, depth: int = 0) -> Any:
    """Return what a record tells of a value: texts, numbers, and lists and maps of them."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath | AccessRule | Quota):
        return _cleaned(str(value))[:TEXT_MAX]
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    if depth >= _DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        return {
            str(key): "(not told)" if _SECRET.search(str(key)) else plain(each, depth + 1)
            for key, each in list(value.items())[:_ENTRIES_MAX]
        }
    if isinstance(value, list | tuple | set | frozenset):
        told = [plain(each, depth + 1) for each in list(value)[:_ENTRIES_MAX]]
        return [*told, *[f"… {len(value)} in all"][: len(value) > _ENTRIES_MAX]]
    if isinstance(value, TopicSettings):
        return {each.name: plain(getattr(value, each.name), depth + 1) for each in fields(value)}
    # Of others only what they are called: they may hold anything.
    names = {name: getattr(value, name, None) for name in _NAMES}
    known = {name: each for name, each in names.items() if isinstance(each, str | int)}
    return {"": type(value).__name__, **known}


_NAMES: Final = ("topic", "partition", "group", "node", "name", "path", "member")


def _subject_of(arguments: Mapping[str, Any]) -> str:
    for name, value in arguments.items():
        if isinstance(value, str) and not _SECRET.search(name):
            return _cleaned(value)[:255]
        if isinstance(value, list | tuple) and value:
            found = dict.fromkeys(
                str(getattr(each, "topic", each))
                for each in value
                if isinstance(each, str | AccessRule | Quota) or hasattr(each, "topic")
            )
            return _cleaned(", ".join(list(found)[:5]))[:255]
    return ""


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:TEXT_MAX]


def _cleaned(text: str) -> str:
    return _IN_QUERY.sub(r"\1=(not told)", _IN_URL.sub("", text))
