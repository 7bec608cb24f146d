"""What a client gives the nodes that it makes, when the list of identities cannot be read."""

import asyncio

import pytest

from vq.coordination.tree.acls import identity_of
from vq.coordination.tree.coordinator import (
    ConnectionLost,
    CoordinationError,
    Node,
    NoNode,
    Stat,
    Watch,
)
from vq.coordination.tree.values.identities import Identities
from vq.coordination.zookeeper.kazoo_acls import AclsOfNewNodes

LIST = Identities(operators=(identity_of("op:0123456789abcdef"),)).encode()


class Reader:
    """Answers with what comes next: bytes of the list, or an error."""

    def __init__(self, *answers: bytes | BaseException) -> None:
        self.answers = list(answers)
        self.watches: list[Watch | None] = []

    async def get(self, _path: str, *, watch: Watch | None = None) -> Node:
        self.watches.append(watch)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return Node(answer, Stat(0, 1, 0, 0))

    async def exists(self, _path: str, *, watch: Watch | None = None) -> Stat | None:
        self.watches.append(watch)
        answer = self.answers.pop(0)
        assert isinstance(answer, BaseException)
        raise answer


@pytest.mark.parametrize(
    "lost",
    [
        (ConnectionLost("cut"),),
        (NoNode("none"), ConnectionLost("cut")),
        (asyncio.CancelledError(),),
    ],
    ids=["", "while it is watched for", "cancelled"],
)
async def test_a_list_that_could_not_be_read_is_read_again(lost: tuple[BaseException, ...]) -> None:
    """Or the nodes that are made from then on would be open to everybody, for ever."""
    acls, reader = AclsOfNewNodes(), Reader(*lost, LIST)
    with pytest.raises((CoordinationError, asyncio.CancelledError)):
        await acls.learn(reader)
    assert acls.stale
    await acls.learn(reader)
    assert not acls.stale
    assert acls.of("consumers/g") is not None


async def test_what_was_known_holds_until_the_list_is_read() -> None:
    acls, reader = AclsOfNewNodes(), Reader(LIST, ConnectionLost("cut"))
    await acls.learn(reader)
    with pytest.raises(ConnectionLost):
        await acls.learn(reader)
    assert acls.stale
    assert acls.of("consumers/g") is not None
