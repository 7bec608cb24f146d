"""Programs that open and close a client while they hold a lock of ``logging``, as users write them.

Goal: opening, sending and closing need no lock that the caller may hold. ``dictConfig`` holds the
lock of the module while it makes handlers and closes the ones before; a handler holds its own in
``emit``, ``close`` and, at the end of the program, under ``logging.shutdown``.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.blocking import contents, read_all
from support.cluster import ProcessCluster

import vq
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

#: Every line of vq, also of kazoo's threads, goes to a handler, and a hanging program shows where.
BEGIN = """
import asyncio, faulthandler, logging, logging.config, sys
import vq
faulthandler.dump_traceback_later(20, exit=True)
logging.basicConfig(level="DEBUG", stream=sys.stdout)
logging.getLogger("vq.coordination.zookeeper.zk.kazoo").setLevel(1)
config = vq.MessageFactoryConfig(zookeeper=sys.argv[1], cluster=sys.argv[2])
message = vq.Message(sys.argv[3], b"one")

def configure(kind):
    logging.config.dictConfig({
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"made": {"()": kind}},
        "root": {"level": "DEBUG", "handlers": ["made"]},
    })
"""
BLOCKING = """
def use():
    with vq.MessageFactory(config) as factory:
        factory.create_producer().send_sync(message, 10.0)
        with factory.create_consumer(vq.ConsumerConfig(group="g")) as consumer:
            consumer.subscribe(message.topic)
"""
AIO = """
def use():
    async def work():
        async with vq.aio.MessageFactory(config) as factory:
            await (await factory.create_producer()).send(message)
    asyncio.run(work())
"""
#: A handler uses a client in its constructor.
MADE = """
class Made(logging.NullHandler):
    def __init__(self):
        super().__init__()
        use()
configure(Made)
"""
#: A handler sends lines; it opens its client with its first line, and has it closed when it is.
SHIPPER = """
class Shipper(logging.Handler):
    factory = None
    def emit(self, record):
        if record.name != "shipped":
            return
        if self.factory is None:
            self.factory = vq.MessageFactory(config).open()
            self.producer = self.factory.create_producer()
        self.producer.send_sync(message, 10.0)
    def close(self):
        if self.factory is not None:
            self.factory.shutdown()
        super().close()
logging.getLogger().addHandler(Shipper())
logging.getLogger("shipped").info("a line")
"""
PROGRAMS = {
    "opened and closed in dictConfig": BEGIN + BLOCKING + MADE,
    "opened and closed in dictConfig, aio": BEGIN + AIO + MADE,
    "opened in emit, closed in dictConfig": BEGIN + SHIPPER + "configure(logging.NullHandler)",
    "opened in emit, closed by logging.shutdown": BEGIN + SHIPPER,
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_client_needs_no_lock_of_logging(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path, how: str
) -> None:
    """The message is stored, the program ends by itself, and nothing is shown as an error."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[how])
    program = subprocess.run(
        [sys.executable, str(path), cluster.zookeeper, cluster.name, topic],
        capture_output=True,
        text=True,
        timeout=PROCESSES_WAIT_S,
        check=False,
    )
    assert (program.returncode, program.stderr) == (0, "")
    assert [each for found in read_all(factory, topic).values() for each in contents(found)] == [
        b"one"
    ]
