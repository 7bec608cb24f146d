"""The certificate with which a node serves TLS: looked at on a timer, and what is told of it."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from vq.broker.base.facts import Facts, gauge
from vq.broker.base.jobs import Every, Jobs
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Lane, Runner
from vq.clock import Clock
from vq.log_lines import get_logger
from vq.security.tls import TlsContexts

logger = get_logger(__name__)
#: How often the files are looked at; SIGHUP has it done at once.
_LOOK_S: Final = 10.0
#: So long before it expires, a certificate is a problem of its node.
EXPIRES_SOON_S: Final = 7 * 86_400.0


class OwnCertificate:
    """Looks at the files of TLS, and tells of them. Loop-bound; the files are read on a thread.

    Args:
        contexts: Of all listeners of the node, the one of its clients first; they have the same
            files. (): the node serves without TLS, and nothing is looked at.
        clock: Time.
        runner: Has the thread.
        jobs: Have the timer.
        host: By which name or address clients and other nodes reach this node.
    """

    def __init__(
        self,
        contexts: Sequence[TlsContexts],
        clock: Clock,
        runner: Runner,
        jobs: Jobs,
        *,
        host: str,
    ) -> None:
        self._contexts = contexts
        self._clock = clock
        self._runner = runner
        self._host = host
        self._refusal = ""
        self._reviewed: int | None = None  # the reload whose certificate was tried
        self._refusals = Problems(logger, "others cannot reach this node with its files of TLS")
        self._job = (
            jobs.add("look at TLS files", self._look, Every(_LOOK_S), at_once=True)
            if contexts
            else None
        )

    def look_soon(self) -> None:
        """Look at the files now."""
        if self._job is not None:
            self._job.soon()

    def problems(self) -> list[str]:
        """Return what is wrong with the files, for STATUS."""
        if not self._contexts:
            return []
        troubles = [each.trouble for each in self._contexts if each.trouble]
        found = [f"{each}; the earlier files stay in use" for each in troubles[:1]]
        if self._refusal:
            found.append(
                f"others cannot reach this node at {self._host} with its files of TLS: "
                f"{self._refusal}"
            )
            return found  # it may be that the certificate has expired
        left_s = (self._expires_ms(self._contexts[0]) - self._clock.wall_ms()) / 1_000
        if left_s < 0:
            found.append("the TLS certificate of the node has expired: renew it")
        elif left_s < EXPIRES_SOON_S:
            days = int(left_s / 86_400)
            found.append(f"the TLS certificate of the node expires in {days} days: renew it")
        return found

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[TlsContexts](
            things=lambda: {(): self._contexts[0]} if self._contexts else {},
            facts=(
                gauge(
                    "vq_tls_certificate_expiry_timestamp_seconds",
                    "When the certificate of this node expires; none without TLS.",
                    self._expires_ms,
                    status="tls_expires_ms",
                    ms=True,
                ),
                gauge(
                    "vq_tls_files_refused",
                    "1 while the files of TLS cannot be used, so that earlier ones are, else 0; "
                    "none without TLS.",
                    lambda contexts: bool(contexts.trouble),
                ),
                gauge(
                    "vq_tls_reloads",
                    "How often changed files of TLS were taken since the start; none without TLS.",
                    lambda contexts: contexts.reloads,
                ),
            ),
        )

    async def _look(self) -> None:
        for each in self._contexts:
            await self._runner.run(each.look, Lane.LOOK)
        first = self._contexts[0]
        if self._reviewed != first.reloads:
            self._reviewed = first.reloads
            self._refusal = await self._runner.run(lambda: first.why_not_for(self._host), Lane.LOOK)
            self._refusals.tell(self._host, self._refusal, host=self._host)

    @staticmethod
    def _expires_ms(contexts: TlsContexts) -> int:
        return int((contexts.expires_s or 0) * 1_000)
