"""The process of a broker: builds the real parts, runs the node on uvloop, stops on signals."""

import asyncio
import gc
import logging
import os
import random
import resource
import signal
from typing import Final

from vq.broker.base.config import AuthenticationMode, BrokerConfig
from vq.broker.base.process import RealProcess
from vq.broker.base.scheduler import ScheduledAlarm
from vq.broker.node import BrokerNode
from vq.clock import SystemClock
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.errors import InvalidArgument
from vq.freed_memory import KEPT_BYTES_MAX, keep_freed_memory
from vq.log_lines import get_logger
from vq.remoting.ports import check_plaintext, is_loopback
from vq.remoting.transport import TcpNetwork
from vq.security.tls import ClientCertificates, TlsContexts, TlsMode
from vq.store.commit.flusher import FlushRunner, ThreadFlusher
from vq.store.commit.one_core import one_core
from vq.store.disk.real_disk import RealDisk

logger = get_logger(__name__)

#: The garbage collector looks at everything after so many passes through what is not old, 7 700
#: new objects each; Python's own number is 10.
OLD_PASSES: Final = 30


def build_node(config: BrokerConfig) -> BrokerNode:
    """Return a node with real disk, network, clock and ZooKeeper; not started."""
    clock = SystemClock()
    shared = one_core(clock.monotonic)
    _look_at_plaintext(config)
    _look_at_strangers(config)
    brokers, metrics = _contexts(config)
    coordinator = ZooKeeperCoordinator(
        config.zookeeper,
        config.cluster,
        session_timeout_s=config.session_timeout_s,
        root=config.zookeeper_root,
        auth=config.zookeeper_auth,
        tls=config.zookeeper_tls,
    )
    return BrokerNode(
        config,
        coordinator=coordinator,
        network=_network(brokers, config.tls_mode),
        metrics_network=_network(metrics, config.tls_mode),
        contexts=[each for each in (brokers, metrics) if each is not None],
        disk=RealDisk(),
        clock=clock,
        rng=random.SystemRandom(),
        flushers=[ThreadFlusher(FlushRunner(clock), one_core=shared) for _ in config.directories],
        process=RealProcess(),
        alarm=ScheduledAlarm(clock),
        # Of the machine: where this process has one core, its clients may have others.
        spins=(os.cpu_count() or 1) > 1,
    )


def _look_at_plaintext(config: BrokerConfig) -> None:
    """Refuse plain text beyond this machine that nobody asked for.

    Raises:
        InvalidArgument: Nobody did.
    """
    listens = {"host": config.host}
    if config.metrics_port != 0:
        listens["metrics_host"] = config.metrics_host
    check_plaintext(
        listens,
        encrypted=config.tls is not None and config.tls_mode is TlsMode.REQUIRED,
        plaintext=config.plaintext,
        settings="tls",
    )


def _look_at_strangers(config: BrokerConfig) -> None:
    """Refuse to serve other machines without asking who they are, if nobody said so; or warn.

    Raises:
        InvalidArgument: Nobody did.
    """
    mode = config.authentication
    shows_certificate = (
        config.tls is not None
        and config.tls_mode is TlsMode.REQUIRED
        and config.tls_client_certificates is ClientCertificates.REQUIRED
    )
    if mode.asks or shows_certificate or is_loopback(config.host):
        return
    if mode is AuthenticationMode.OFF:
        logger.warning(
            "other machines are served without authentication", setting="host", host=config.host
        )
        return
    raise InvalidArgument(
        f"host = {config.host!r} can be reached from other machines, and authentication = "
        f"'{mode}' asks nobody who they are: set authentication = required (--authentication, "
        "VQ_BROKER_AUTHENTICATION), start the broker and add users with `vq user add` "
        "(docs/howto/users.md); or set authentication = off if the network is yours alone; or "
        "listen on 127.0.0.1"
    )


def _contexts(config: BrokerConfig) -> tuple[TlsContexts | None, TlsContexts | None]:
    """Return what clients, and what readers of metrics are served with; None: plain TCP.

    Raises:
        InvalidArgument: A file cannot be used.
    """
    tls = config.tls
    if tls is None:
        return None, None
    asked = config.tls_client_certificates, config.metrics_client_certificates
    brokers, metrics = (TlsContexts(tls, client_certificates=each, serves=True) for each in asked)
    return brokers, metrics


def _network(contexts: TlsContexts | None, mode: TlsMode) -> TcpNetwork:
    if contexts is None:
        return TcpNetwork()
    return TcpNetwork(
        server_ssl=contexts.server,
        client_ssl=None if mode is TlsMode.ACCEPTED else contexts.client,
        plain_too=mode is not TlsMode.REQUIRED,
    )


async def serve(config: BrokerConfig) -> bool:
    """Run a broker until SIGTERM or SIGINT; return whether it ended cleanly.

    Raises:
        VqError: It could not start, or not go on; the message says why and what to do.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = build_node(config)
    loop.add_signal_handler(signal.SIGHUP, node.look_at_certificate)
    # Without this line, a broker that waits for an unreachable ZooKeeper logs nothing for long.
    logger.info("connecting to ZooKeeper", servers=config.zookeeper)
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return not node.hangs
    if node.hangs:
        logger.critical("broker cannot start", error=starting.exception())
        return False
    starting.result()
    collect_rarely()
    failing = asyncio.ensure_future(node.failed())
    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not failing.done():
        failing.cancel()
        return await node.stop()
    stopping.cancel()
    error = failing.result()
    logger.critical("broker stops, it cannot go on", error=error)
    if await node.stop():
        raise error
    return False


def run_broker(config: BrokerConfig) -> None:
    """Run a broker in this process until it is told to stop.

    Raises:
        VqError: It could not start, or not go on; the message says why and what to do.
    """
    raise_descriptor_limit()
    keep_freed_memory(KEPT_BYTES_MAX)
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, not different
        run = asyncio.run
    else:
        run = uvloop.run
    if not run(serve(config)):
        # A thread that hangs in a call to the disk would keep the process. What was acknowledged
        # is durable, and the next start recovers the rest.
        logging.shutdown()
        os._exit(1)


def collect_rarely() -> None:
    """Have the garbage collector look at everything as rarely as memory allows.

    The loop stands still while it does: 10 ms and more where thousands of requests wait. Objects
    made so far live as long as the process, so they are left out.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], OLD_PASSES)


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the maximum: connections and block files need them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # an unlimited hard limit above the kernel's own
        logger.warning("limit of open files cannot be raised", wanted=hard, error=error)
