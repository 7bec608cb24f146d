"""What the server of a node tells of its connections and requests."""

from collections.abc import Iterator
from typing import Any

from vq.broker.base.facts import Fact, Facts, counter, gauge
from vq.broker.connections.server import Server
from vq.broker.security.authentication import Authentication


def server_facts(server: Server) -> Iterator[Facts[Any]]:
    """Return what a server tells."""
    yield Facts[Server].of(
        server,
        gauge(
            "vq_connections",
            "Open connections.",
            lambda server: len(server.sessions),
            status="connections",
        ),
        gauge(
            "vq_plain_connections",
            "Of these, those without TLS.",
            lambda server: sum(not session.encrypted for session in server.sessions),
        ),
        counter(
            "vq_ended_connections",
            "Connections that the node ended because of a bound or of what the peer did.",
            lambda server: server.refused,
        ),
        counter(
            "vq_failed_handshakes",
            "TLS connections that ended before their handshake did: no TLS, another authority, no "
            "certificate, or too slow.",
            lambda server: server.failed_handshakes,
        ),
        gauge(
            "vq_waiting_requests",
            "Requests without an answer, reads not counted.",
            lambda server: server.requests_waiting,
        ),
        gauge(
            "vq_waiting_reads",
            "Reads (GET, FETCH, REPLICATE) without an answer: they wait for messages.",
            lambda server: server.reads_waiting,
        ),
        Fact(
            read=lambda server: server.requests_waiting + server.reads_waiting,
            status="requests_waiting",
        ),
        gauge(
            "vq_waiting_put_bytes",
            "Bytes of sends that wait for an answer.",
            lambda server: server.put_bytes,
        ),
    )
    yield Facts[Authentication](
        things=lambda: {} if server.authentication is None else {(): server.authentication},
        facts=(
            counter(
                "vq_failed_authentications",
                "Connections that did not show who they are: an unknown user, a wrong password, or "
                "no proof at all.",
                lambda authentication: authentication.attempts.failed,
            ),
            counter(
                "vq_refused_authentications",
                "Attempts that were not looked at, because their address had failed too often.",
                lambda authentication: authentication.attempts.refused,
            ),
            gauge(
                "vq_users_age_seconds",
                "How long ago the users were read from ZooKeeper; after 300 s the node takes no "
                "new connections of users.",
                lambda authentication: authentication.users.age_s,
            ),
        ),
    )
    yield Facts[int](
        labels=("user",),
        things=lambda: (
            {}
            if server.authentication is None
            else server.authentication.old_passwords(server.sessions)
        ),
        facts=(
            gauge(
                "vq_old_password_connections",
                "Connections that have proved the older of two valid passwords of a user; 0 at all "
                "nodes: it can be withdrawn.",
                int,
            ),
        ),
    )
    yield Facts[int](
        labels=("error", "status"),
        things=lambda: {
            (error.__name__, str(error.status)): count for error, count in server.refusals.items()
        },
        facts=(
            counter(
                "vq_refused_requests",
                "Requests that were answered with an error, by its name and number.",
                int,
            ),
        ),
    )
