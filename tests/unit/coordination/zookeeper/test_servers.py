"""The addresses of ZooKeeper are checked before anything connects; the error says what to write."""

import pytest

from vq.client.config import MessageFactoryConfig
from vq.coordination.zookeeper.servers import checked_servers
from vq.errors import InvalidArgument


@pytest.mark.parametrize(
    ("servers", "same"),
    [
        ("localhost:2181", "localhost:2181"),
        ("zk1:2181, zk2:2182", "zk1:2181,zk2:2182"),
        ("[::1]:2181", "[::1]:2181"),
    ],
)
def test_servers_have_ports(servers: str, same: str) -> None:
    assert checked_servers(servers) == same
    assert MessageFactoryConfig(zookeeper=servers).zookeeper == servers


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ("localhost", "'localhost' has no port; write 'localhost:2181'"),
        ("zk1:2181,zk2", "'zk2' has no port; write 'zk2:2181'"),
        ("2181", "'2181' has no port; write '2181:2181'"),
        ("zk1:99999", "'zk1:99999' is not host:port; write host:port[,host:port...]"),
        ("zk1:0", "'zk1:0' is not host:port; write host:port[,host:port...]"),
        ("a:1;b:2", "'a:1;b:2' is not host:port; write host:port[,host:port...]"),
        ("", "a server is missing; write host:port[,host:port...]"),
        ("zk1:2181,", "a server is missing; write host:port[,host:port...]"),
        (
            "http://zk1:2181",
            "a scheme is not supported; leave out 'http://', write host:port",
        ),
        (
            "zk1:2181/chroot",
            "a path is not supported; leave out '/chroot' (the setting cluster keeps clusters "
            "apart)",
        ),
    ],
)
def test_other_servers_are_refused_where_they_are_given(servers: str, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        MessageFactoryConfig(zookeeper=servers)
    assert str(refused.value) == f"zookeeper = {servers!r}: {why}"
