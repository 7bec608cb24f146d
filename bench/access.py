"""What rules of access, and quotas, cost a broker for each request.

*Rules of access*, with 10,000 of them: it calls what the door of a broker calls once a request is
decoded. *PUT*, *GET*: all of it, for a user with two roles and topics that were asked for before.
*first* is the first decision about a topic. *off* is the test whether a command is guarded, which a
broker does anyway. All is processor time in microseconds.

*Quotas*: PUTs of 1 KiB are parsed and answered, by a connection with a user whose quota has four
limits (*limited*), by one of a user without any beside it (*others*), and where nobody has one
(*off*).

docs/decisions/0159-rules-of-access.md and 0161-quotas.md have the figures of the decisions.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from bench.context import Context, Rounds
from bench.figures import Figure
from vq.broker.base.config import Authorization
from vq.broker.base.notice import Notice
from vq.broker.connections.metered_connection import MeteredConnection, Meters
from vq.broker.security.accounts import Accounts
from vq.broker.security.authority import Authority
from vq.broker.security.request_access import RequestAccess
from vq.clock import SystemClock
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import ClientConnection, ServerConnection
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity
from vq.remoting.membership import Principal
from vq.security.quotas import Quota, Quotas
from vq.security.rules import RULES_MAX, AccessRule, AccessRules

TOPICS: Final = 64
_USER: Final = Principal("", "", False, "user7", frozenset({"clerks", "shop"}))


def _rules() -> AccessRules:
    """Return as many rules as there may be; some are of the user and of its roles."""
    subjects = ("user:user7", "role:clerks", "user:other", "role:auditors", "*")
    return AccessRules(
        AccessRule.parse(
            f"{'deny' if n % 10 == 9 else 'allow'} {subjects[n % 5]} read,write "
            f"topic:department{n % 100}.orders{n}{'*' if n % 2 else ''}"
        )
        for n in range(RULES_MAX - 1)
    ).adding([AccessRule.parse("allow role:shop read,write topic:shop.*")])


def access(context: Context) -> Rounds:
    """Have the door decide PUTs and GETs. There is no broker: only its door."""
    count = context.pick(200_000, 5_000)
    rules: Any = SimpleNamespace(current=_rules(), changed=Notice())
    authority = Authority(Authorization.ENFORCED, (), rules, SystemClock())
    door = RequestAccess(authority, lambda _: (), [Command.PUT, Command.GET])
    names = [f"shop.orders.{n}" for n in range(TOPICS)]
    puts = [wire.PutRequest(topic=each, producer_id=n + 1) for n, each in enumerate(names)]
    gets = [wire.GetRequest(topic=each) for each in names]
    guarded = {Command.SEAL.value}
    for _ in range(context.rounds):
        figures = []
        for command, headers in ((Command.PUT, puts), (Command.GET, gets)):
            number = command.value
            all_us = _each_us(
                headers, count, lambda each, of=number: door.check(_USER, of, each, b"")
            )
            off_us = _each_us(headers, count, lambda _, of=number: of in guarded)
            figures += [
                Figure(f"{command.name}, each", all_us - off_us, "µs"),
                Figure(f"{command.name}, off, each", off_us, "µs"),
            ]
        fresh = [wire.GetRequest(topic=f"shop.{n}") for n in range(context.pick(10_000, 1_000))]
        first_us = _each_us(
            fresh, len(fresh), lambda each: door.check(_USER, Command.GET.value, each, b"")
        )
        rules.current = _rules()
        rules.changed.tell()
        yield [*figures, Figure("GET, first, each", first_us, "µs")]


def _each_us(headers: list[Any], count: int, run: Callable[[Any], object]) -> float:
    """Return the processor time of a call in microseconds."""
    rounds = max(1, count // len(headers))
    begin = time.process_time()
    for _ in range(rounds):
        for each in headers:
            run(each)
    return (time.process_time() - begin) / (rounds * len(headers)) * 1e6


def quotas(context: Context) -> Rounds:
    """Have connections parse PUTs and make their answers. There is no broker behind them."""
    count = context.pick(20_000, 1_000)
    limits = "bytes-in=1000G bytes-out=1000G requests=1e12 messages-in=1e12"
    known: Any = SimpleNamespace(current=Quotas([Quota.parse(f"user:limited {limits}")]))
    known.changed = Notice()
    meters = Meters(Accounts(known, SystemClock()), SystemClock())
    for _ in range(context.rounds):
        yield [
            Figure(f"{name}, each", _put_us(count, user, meters), "µs")
            for name, user in (("limited", "limited"), ("others", "other"), ("off", None))
        ]


def _put_us(count: int, user: str | None, meters: Meters) -> float:
    """Return the processor time of a PUT and its answer at a connection; None: not metered."""
    client = ClientConnection()
    identity = ServerIdentity(cluster="bench", group="b1", node="n1")
    inner = ServerConnection(identity)
    session: Any = SimpleNamespace(
        principal=Principal("", "", False, user or ""), client_id="", hold=None, go_on=None
    )
    server: Any = inner if user is None else MeteredConnection(inner, session, meters)
    server.receive_data(b"".join(map(bytes, client.hello(client_id="bench"))))
    client.receive_data(b"".join(map(bytes, server.data_to_send())))
    body = bytes(1024)
    header = wire.PutRequest(topic="t", record_count=1, crc=1).SerializeToString()
    spent = 0.0
    for _ in range(count):
        _, buffers = client.request(Command.PUT, header, body)
        data = b"".join(map(bytes, buffers))
        begin = time.process_time()
        (request,) = server.receive_data(data)
        answer = server.reply(request.request_id, wire.PutResponse(offset=1))
        spent += time.process_time() - begin
        client.receive_data(b"".join(map(bytes, answer)))
    return spent / count * 1e6
