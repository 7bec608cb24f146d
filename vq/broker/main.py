"""The process of a broker: builds the real parts, runs the node on uvloop, stops on signals."""

import asyncio
import gc
import logging
import random
import signal
import sys

from vq.broker.config import BrokerConfig
from vq.broker.node import BrokerNode
from vq.clock import SystemClock
from vq.coordination.zk import ZooKeeperCoordinator
from vq.errors import VqError
from vq.remoting.transport import TcpNetwork
from vq.store.disk import RealDisk

logger = logging.getLogger(__name__)


def build_node(config: BrokerConfig) -> BrokerNode:
    """Return a node with real disk, network, clock and ZooKeeper; not started."""
    clock = SystemClock()
    coordinator = ZooKeeperCoordinator(
        config.zookeeper,
        config.cluster,
        session_timeout_s=config.session_timeout_s,
        root=config.zookeeper_root,
    )
    return BrokerNode(
        config,
        coordinator=coordinator,
        network=TcpNetwork(),
        disk=RealDisk(),
        clock=clock,
        rng=random.SystemRandom(),
    )


async def serve(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Raises:
        VqError: It could not start; the message says why and what to do.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = build_node(config)
    await node.start()
    # What was made so far lives as long as the process: collections need not look at it again.
    gc.collect()
    gc.freeze()
    await stop.wait()
    await node.stop()


def run_broker(config: BrokerConfig) -> int:
    """Run a broker in this process until it is told to stop; return the exit code."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, not different
        run = asyncio.run
    else:
        run = uvloop.run
    try:
        run(serve(config))
    except VqError as error:
        hint = f" ({error.hint})" if error.hint else ""
        logger.warning("broker %s/%s: %s%s", config.group, config.node, error, hint)
        sys.stderr.write(f"vq broker: {error}{hint}\n")
        return 1
    return 0
