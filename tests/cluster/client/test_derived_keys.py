"""What a broker has a client compute does not hold up its program. In real time: with threads."""

import threading

from support.broker import memory_cluster
from support.users import add

from vq.remoting.broker_connection import connect
from vq.remoting.login import Login
from vq.security.scram import ScramKeys
from vq.testing.waiting import WAIT_S


class NotesItsThread(Login):
    """A login that notes where its keys are derived."""

    thread = ""

    def keys(self, salt: bytes, iterations: int) -> ScramKeys:
        self.thread = threading.current_thread().name
        return super().keys(salt, iterations)


async def test_the_rounds_that_a_broker_asks_for_do_not_hold_a_clients_loop() -> None:
    """They take a second, of as many as a client does at most."""
    login = NotesItsThread("anna", "secret")
    async with memory_cluster() as cluster:
        await add(cluster, "anna", "secret")
        node = await cluster.start(authentication="required")
        connection = await connect(
            cluster.network.at("client"),
            node.address,
            client_id="test",
            cluster="test",
            timeout=WAIT_S,
            on_close=lambda _: None,
            login=login,
        )
        connection.close()
    assert login.thread.startswith("vq-keys")
