"""May this request be carried out? What the door asks of each one, once it is decoded.

A request needs the rights that ``demands`` derives from it. Beside these:

    PUT         a producer id belongs to the user who was first seen with it at the topic
                (``owners``), and so does the number of a transaction that it says it is
    TRANSACT    a transaction belongs to the user who began it, as the journal has noted; until
                that is read, to who was first seen with its number. One with a transactional id
                is also for others who may write that; and who manages the cluster may touch all.
                What the journal has of it counts like what the request says: who decides needs
                the rights for all of its messages
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from vq.broker.security.authority import Authority
from vq.broker.security.demands import Demand, demand_of, looks_inside, of_transaction
from vq.broker.security.owners import Owners
from vq.limits import is_valid_name
from vq.model import TransactionState
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.membership import Principal
from vq.security.rules import ANONYMOUS, Need, Resource, Right

#: Topics that are remembered as allowed, of all users; all are forgotten when there are more.
GRANTED_MAX: Final = 65_536
#: Looked up for each request.
_PUT: Final = Command.PUT.value
_READ, _WRITE, _MANAGE = Right.READ, Right.WRITE, Right.MANAGE
_TOPIC, _CLUSTER = Resource.TOPIC, Resource.CLUSTER

#: Takes who asks, the header and the body; raises why not.
_Check = Callable[[Principal, Any, bytes], None]


class StoredTransaction(NamedTuple):
    """What the journal has of a transaction.

    Attributes:
        needs: What its messages, its transactional id and its producer group need.
        user: Who began it; "": that is not known.
        client: Its transactional id; "": it has none.
    """

    needs: Sequence[Need] = ()
    user: str = ""
    client: str = ""


NOT_STORED: Final = StoredTransaction()


class RequestAccess:
    """See the module's text. Loop-bound.

    Args:
        authority: Decides.
        stored: Returns what the journal has of the transaction of a request.
        commands: Which a node carries out.

    Attributes:
        enabled: The door is to ask at all.

    Raises:
        LookupError: Nothing says what one of the commands needs.
    """

    def __init__(
        self,
        authority: Authority,
        stored: Callable[[wire.TransactRequest], StoredTransaction],
        commands: Iterable[int],
    ) -> None:
        self.enabled: Final = authority.enabled
        self._authority = authority
        self._stored = stored
        self._producers = Owners()
        self._transactions = Owners()
        self._readable = _Granted(authority, _READ)
        self._writable = _Granted(authority, _WRITE)
        self._demands: dict[int, Demand] = {each: demand_of(each) for each in commands}
        own: dict[int, _Check] = {
            Command.PUT.value: self._put,
            Command.GET.value: self._get,
            Command.FETCH.value: lambda asker, _header, _body: authority.check_known(asker),
            Command.CANCEL.value: self._cancel,
            Command.TRANSACT.value: self._transact,
        }
        self._checks = {each: own.get(each) or self._by_demand(each) for each in self._demands}

    def check(self, asker: Principal, command: int, header: Any, body: bytes) -> None:
        """Return if a request may be carried out.

        Raises:
            NotAuthorized: A right is missing, or it uses what is another user's.
            InvalidRequest: What it needs cannot be read from its body.
            Busy: The rules are not known.
        """
        if asker.proved:
            if command == _PUT and header.producer_id:
                self._producers.take((header.topic, header.producer_id))
            return
        self._checks[command](asker, header, body)

    def _by_demand(self, command: int) -> _Check:
        demand, check = self._demands[command], self._authority.check

        def each(asker: Principal, header: Any, body: bytes) -> None:
            for right, resource, name in demand(header, body):
                check(asker, right, resource, name)

        return each

    # The commands of which there are many are spelled out: no generator, no tuple of rights.
    def _get(self, asker: Principal, header: wire.GetRequest, _body: bytes) -> None:
        topic, readable = header.topic, self._readable
        mine = readable.topics.get(asker)
        if mine is None or topic not in mine:
            readable.ask(asker, topic)

    def _put(self, asker: Principal, header: wire.PutRequest, body: bytes) -> None:
        topic, writable = header.topic, self._writable
        mine = writable.topics.get(asker)
        if mine is None or topic not in mine:
            if looks_inside(topic):
                for right, resource, name in self._demands[_PUT](header, body):
                    self._authority.check(asker, right, resource, name)
            else:
                writable.ask(asker, topic)
        if header.accepted:
            self._authority.check(asker, _MANAGE, _CLUSTER, "")
        number = header.transaction_id
        if number and not (
            self._transactions.of(number) in {asker.user, None}
            and self._transactions.claim((topic, number), asker.user)
        ):
            self._not_own(asker, Need(_WRITE, _TOPIC, topic), "transaction", number)
        producer_id = header.producer_id
        if producer_id and not self._producers.claim((topic, producer_id), asker.user):
            self._not_own(asker, Need(_WRITE, _TOPIC, topic), "producer id", producer_id)

    def _cancel(self, asker: Principal, header: wire.CancelRequest, body: bytes) -> None:
        self._authority.check_known(asker)
        for right, resource, name in self._demands[Command.CANCEL](header, body):
            self._authority.check(asker, right, resource, name)

    def _transact(self, asker: Principal, header: wire.TransactRequest, body: bytes) -> None:
        stored = NOT_STORED if header.by else self._stored(header)
        needs = dict.fromkeys((*of_transaction(header, body), *stored.needs))
        for right, resource, name in needs:
            self._authority.check(asker, right, resource, name)
        if not needs and header.state != TransactionState.UNKNOWN:  # it may be noted all the same
            self._authority.check_some(asker, _WRITE, _TOPIC)
        if not header.by and not self._may_touch(asker, header, stored):
            self._not_own(asker, Need(_MANAGE, _CLUSTER), "transaction", header.transaction)

    def _may_touch(
        self, asker: Principal, header: wire.TransactRequest, stored: StoredTransaction
    ) -> bool:
        """Whether a transaction is a user's, who has the rights to all of it; see the module."""
        number, user = header.transaction, asker.user
        if stored.user:
            is_own = stored.user == (user or ANONYMOUS)
        elif header.state == TransactionState.UNKNOWN:  # it only asks
            is_own = self._transactions.of(number) in {user, None}
        else:
            is_own = self._transactions.claim(number, user) or bool(stored.needs)
        if is_own or (stored.client and stored.client == header.client):
            return True
        return self._authority.allows(asker, _MANAGE, _CLUSTER, "")

    def _not_own(self, asker: Principal, need: Need, what: str, number: int) -> None:
        self._authority.refuse(
            asker, need, why=f"{what} {number} is another user's", details={"number": number}
        )


class _Granted:
    """Topics for which users have a right, as long as the rules are the same."""

    __slots__ = ("_authority", "_count", "_right", "topics")

    def __init__(self, authority: Authority, right: Right) -> None:
        self._authority = authority
        self._right = right
        self._count = 0
        self.topics: dict[Principal, set[str]] = {}
        authority.changed.listen(self._forget)

    def ask(self, asker: Principal, topic: str) -> None:
        """Return if a user has the right, and remember that it has.

        Raises:
            VqError: It has not; see ``Authority.check``.
        """
        if self._authority.check(asker, self._right, _TOPIC, topic) and is_valid_name(topic):
            if self._count >= GRANTED_MAX:
                self._forget()
            self._count += 1
            self.topics.setdefault(asker, set()).add(topic)

    def _forget(self) -> None:
        self.topics.clear()
        self._count = 0
