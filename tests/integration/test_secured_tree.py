"""``vq zk secure`` on a real ZooKeeper: who may write what, while a broker and clients go on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl, make_digest_acl_credential
from support.cluster import ProcessCluster, process_cluster

import vq
from vq.coordination.tree.acls import identity_of
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

AUTHS = {name: f"{name}:{name}-0123456789abcdef" for name in ("operators", "brokers", "orders")}
MESSAGES = 20
#: Where clients write: groups, slots of message ids, decisions of transactions, repeatable writes.
OF_CLIENTS = {"consumers", "slots", "slot_marks", "decisions", "writes"}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file with the identity of each."""
    made = {}
    for name, auth in AUTHS.items():
        file = tmp_path / name
        file.write_text(f"{auth}\n")
        file.chmod(0o600)
        made[name] = str(file)
    return made


@pytest.fixture
def secured(
    tmp_path: Path,
    zookeeper: EmbeddedZooKeeper,
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ProcessCluster]:
    """A cluster whose processes named themselves, and whose tree was closed then."""
    with process_cluster(tmp_path / "cluster", zookeeper.hosts) as cluster:
        monkeypatch.setenv("VQ_ZOOKEEPER_AUTH", AUTHS["brokers"])
        cluster.add("b1")
        monkeypatch.delenv("VQ_ZOOKEEPER_AUTH")
        cluster.zookeeper_auth = AUTHS["operators"]
        cluster.vq_json("topic", "create", "orders", "--partitions", "2")
        options = [f"--{each}={files[each]}" for each in ("operators", "brokers")]
        options.append(f"--clients={files['orders']}=orders-*")
        try:
            planned = cluster.vq_json("zk", "secure", *options)
            assert planned["open"] == planned["nodes"] > 10
            done = cluster.vq_json("zk", "secure", *options, "--yes")
            assert done["open"] >= planned["open"]
            yield cluster
        finally:
            cluster.vq_json("zk", "secure", "--undo", "--yes")


@contextlib.contextmanager
def zookeeper_as(cluster: ProcessCluster, name: str) -> Iterator[KazooClient]:
    """A bare client that ZooKeeper knows as ``name``; "": as nobody."""
    auth = [("digest", AUTHS[name])] if name else None
    client = KazooClient(cluster.zookeeper, timeout=4.0, auth_data=auth)
    client.start(timeout=PROCESSES_WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def every_node(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from every_node(client, f"{path}/{name}")


def _may_write(client: KazooClient, path: str) -> bool:
    """Whether ZooKeeper would take a value; the version is none, so nothing changes."""
    try:
        client.set(path, b"", version=1 << 30)
    except NoAuthError:
        return False
    except BadVersionError:
        return True
    raise AssertionError(path)


def factory_of(cluster: ProcessCluster, auth: str) -> vq.MessageFactory:
    config = vq.MessageFactoryConfig(
        zookeeper=cluster.zookeeper, cluster=cluster.name, zookeeper_auth=auth
    )
    return vq.MessageFactory(config)


def config_of(group: str) -> vq.ConsumerConfig:
    return vq.ConsumerConfig(group=group)


def test_a_digest_is_what_zookeeper_computes() -> None:
    """Otherwise nobody would hold the rights."""
    name, _, password = AUTHS["orders"].partition(":")
    assert identity_of(AUTHS["orders"]) == make_digest_acl_credential(name, password)


@pytest.mark.slow
def test_messages_flow_and_each_writes_only_what_is_its_own(secured: ProcessCluster) -> None:
    """Brokers, topics and secrets are closed to clients, groups of others too; all to anybody.

    What a client makes with an ACL of its own keeps no other node from being closed.
    """
    with factory_of(secured, AUTHS["orders"]) as factory:
        producer = factory.create_producer()
        producer.publish("orders")
        for number in range(MESSAGES):
            producer.send_sync(vq.Message("orders", b"%d" % number))
        factory.admin.begin_write("nightly")  # the first one of the cluster
        seen: list[bytes] = []
        consumer = factory.create_consumer(config_of("orders-mail"))
        consumer.subscribe("orders", 1 << 20, lambda message: seen.append(message.content))
        consumer.start()
        block_until(lambda: len(seen) == MESSAGES, PROCESSES_WAIT_S)
        with zookeeper_as(secured, "operators") as operator:
            root = f"/vq/{secured.name}"
            paths = list(every_node(operator, root))
            unsecured = [
                path
                for path in paths
                if any(each.id.scheme == "world" for each in operator.get_acls(path)[0])
            ]
            assert not unsecured  # what was made since, too: members, owners, slots
            records = [path for path in paths if "/audit/acts/" in path]
            assert len(records) > 2
            for path in records:  # what operators did is not theirs to change
                with pytest.raises(NoAuthError):
                    operator.set(path, b"{}")
                with pytest.raises(NoAuthError):
                    operator.delete(path, recursive=True)
        closed = [f"{root}/{each}" for each in ("brokers/b1", "topics/orders", "settings")]
        with zookeeper_as(secured, "orders") as client, zookeeper_as(secured, "") as nobody:
            for path in closed:
                with pytest.raises(NoAuthError):
                    client.ensure_path(f"{path}/mine")
            with pytest.raises(NoAuthError):
                client.get(f"{root}/security/secret")
            with pytest.raises(NoAuthError):
                client.delete(f"{root}/brokers/b1/state")
            with pytest.raises(NoAuthError):
                client.set(f"{root}/topics/orders", b"{}")
            written = {path.removeprefix(f"{root}/") for path in paths if _may_write(client, path)}
            assert {each.partition("/")[0] for each in written} <= OF_CLIENTS
            assert any(each.startswith("consumers/orders-mail/") for each in written)
            for path in paths:
                for call in (nobody.get, nobody.get_children, lambda path: nobody.set(path, b"")):
                    with pytest.raises(NoAuthError):
                        call(path)
        consumer.close()
        other = factory.create_consumer(config_of("billing"))
        other.subscribe("orders", 1 << 20, lambda message: None)
        with pytest.raises(vq.VqError, match="does not allow this"):
            other.start()
    again = secured.vq_json("zk", "secure", "--yes")
    assert again["open"] == 0
    checks = {each["check"]: each["level"] for each in secured.vq_json("doctor")}
    assert checks["tree"] == "ok"
    with zookeeper_as(secured, "orders") as client, zookeeper_as(secured, "operators") as operator:
        mine = make_digest_acl("orders", AUTHS["orders"].partition(":")[2], all=True)
        client.create(f"{root}/consumers/sales", b"", acl=[mine])
        client.create(f"{root}/consumers/sales/offsets", b"", acl=[mine])
        operator.set_acls(f"{root}/writes", OPEN_ACL_UNSAFE)
        assert secured.vq_json("zk", "secure")["others"] == 1
        ended = secured.vq("zk", "secure", "--yes")
        assert ended.returncode == 1
        assert (
            b"1 nodes keep an ACL that lets no operator change it: 'consumers/sales" in ended.stderr
        )
        assert "world" not in {each.id.scheme for each in operator.get_acls(f"{root}/writes")[0]}
        client.delete(f"{root}/consumers/sales/offsets")
        operator.delete(f"{root}/consumers/sales")


@pytest.mark.slow
def test_whoever_would_lock_itself_or_a_broker_out_is_refused(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, files: dict[str, str]
) -> None:
    """The run that closes the tree is one of an operator of it; and no password is shown."""
    with process_cluster(tmp_path / "cluster", zookeeper.hosts) as cluster:
        cluster.add("b1")
        cluster.zookeeper_auth = AUTHS["orders"]
        ended = cluster.vq("zk", "secure", f"--operators={files['operators']}", "--yes")
        assert ended.returncode != 0
        assert b"none of the operators" in ended.stderr
        cluster.zookeeper_auth = AUTHS["operators"]
        ended = cluster.vq("zk", "secure", f"--operators={files['operators']}", "--yes")
        assert ended.returncode != 0
        assert b"b1/n1 would be locked out" in ended.stderr, "the broker does not name itself"
        Path(files["brokers"]).chmod(0o644)
        ended = cluster.vq("zk", "secure", f"--operators={files['brokers']}")
        assert b"chmod 600" in ended.stderr
        assert b"0123456789abcdef" not in ended.stderr + ended.stdout
