"""How a node takes clients, and what it would refuse: for `vq secure plan`."""

from collections import Counter
from typing import Final

from vq.broker.base.config import BrokerConfig
from vq.broker.base.session import Session
from vq.broker.connections.server import Server
from vq.broker.security.authority import Authority
from vq.remoting import wire_pb2 as wire
from vq.remoting.ports import is_loopback

#: Clients, and missing rights, that one answer has.
ANONYMOUS_MAX: Final = 50
MISSING_MAX: Final = 200
#: Longest reason, in characters.
_WHY_CHARS_MAX: Final = 300


class Exposure:
    """See the module's text. Loop-bound; it costs nothing until it is asked."""

    def __init__(self, config: BrokerConfig, server: Server, authority: Authority) -> None:
        self._config = config
        self._server = server
        self._authority = authority

    def report(self, asking: Session | None) -> wire.SecurityStatus:
        """Return what is told; the connection of ``asking`` is not counted."""
        config, told = self._config, wire.SecurityStatus()
        told.authentication = config.authentication
        told.authorization = config.authorization
        told.tls = "none" if config.tls is None else config.tls_mode
        told.tls_client_certificates = config.tls_client_certificates
        told.loopback = is_loopback(config.host)
        told.zookeeper_tls = config.zookeeper_tls is not None
        told.zookeeper_auth = bool(config.zookeeper_auth)
        told.super_users.extend(config.super_users)
        self._tell_connections(told, asking)
        missing = self._authority.missing()
        told.missing_left_out = max(0, len(missing) - MISSING_MAX)
        for each in missing[:MISSING_MAX]:
            told.missing.add(
                user=each.asker.user,
                right=each.need.right,
                resource=each.need.about,
                requests=each.requests,
                last_ms=each.last_ms,
                because=each.why[:_WHY_CHARS_MAX],
                by_rule=each.by_rule,
                denied=each.denied,
            )
        return told

    def _tell_connections(self, told: wire.SecurityStatus, asking: Session | None) -> None:
        anonymous: Counter[tuple[str, str]] = Counter()
        for each in self._server.sessions:
            if each is asking or each.principal.proved:
                continue
            told.connections += 1
            told.plain_connections += not each.encrypted
            if not each.principal.user:
                anonymous[each.address, each.client_id] += 1
        told.anonymous_connections = anonymous.total()
        for (host, client_id), count in anonymous.most_common(ANONYMOUS_MAX):
            told.anonymous.add(host=host, client_id=client_id, connections=count)
