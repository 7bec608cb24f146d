"""Users with real processes: a broker that takes nobody else, and commands as clients of it."""

from pathlib import Path

import pytest
from support.cluster import ProcessCluster

import vq
from vq.errors import NotAuthenticated
from vq.testing.waiting import block_until

PASSWORD = "correct horse battery staple"


def test_commands_are_users_of_a_broker_that_takes_nobody_else(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Added, taken, rotated, removed; commands of an operator need no user. Nothing shows it."""
    settings, secret, wrong = (tmp_path / name for name in ("vq.toml", "password", "wrong"))
    settings.write_text('[broker]\nauthentication = "required"\n')
    for file, password in ((secret, PASSWORD), (wrong, "guess")):
        file.touch(mode=0o600)
        file.write_text(f"{password}\n")
    broker = processes.add("b1", "--config", str(settings))
    processes.vq_json("user", "add", "anna", "--new-password-file", str(secret))
    processes.vq_json("topic", "create", "t", "--partitions", "2")
    assert processes.vq_json("cluster", "status")

    def produce(*more: str) -> tuple[int, str]:
        ended = processes.vq("produce", "t", *more, stdin=b"one\ntwo\n")
        return ended.returncode, ended.stderr.decode()

    anna = ("--user", "anna", "--password-file", str(secret))
    assert produce(*anna)[0] == 0
    for refused in ((), ("--user", "anna", "--password-file", str(wrong))):
        code, said = produce(*refused)
        assert code != 0
        assert "NotAuthenticated" in said
    ended = processes.vq("consume", "t", "--max", "2", "--from", "earliest", *anna)
    assert sorted(ended.stdout.split()) == [b"one", b"two"]
    reached = {"zookeeper": processes.zookeeper, "cluster": processes.name}
    for password in ("guess", PASSWORD):
        config = vq.MessageFactoryConfig(**reached, user="anna", password=password)
        with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
            producer.publish("t")
            if password == PASSWORD:
                assert producer.send_sync(vq.Message("t", b"x")).offset >= 0
                continue
            for _ in range(2):  # on this thread, then on the loop
                with pytest.raises(NotAuthenticated):
                    producer.send_sync(vq.Message("t", b"x"))
    processes.vq_json("user", "remove", "anna", "--yes")
    assert produce(*anna)[0] != 0
    block_until(
        lambda: "connections ended for breaking a rule" in broker.spec.log.read_text(),
        "no sweep has logged the refusals",
    )
    log = broker.spec.log.read_text()
    for word in (PASSWORD, "guess"):
        assert word not in log
