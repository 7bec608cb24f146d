"""Broker children: when one is taken to be ready."""

from pathlib import Path

import pytest

from vq.devtools import processes
from vq.devtools.processes import BrokerChild, BrokerSpec, ChildEnded
from vq.model import Address
from vq.remoting.wire_pb2 import StatusResponse


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (StatusResponse(group="b1", master=True), True),
        (StatusResponse(group="b1"), False),
        (StatusResponse(group="b2", master=True), False),
        (None, False),
    ],
)
def test_a_child_is_ready_when_it_leads_its_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: StatusResponse | None, ready: bool
) -> None:
    """Another broker may have taken its port; the child itself has ended then."""

    async def ask_status(
        _: Address, *, cluster: str, tls: object, zookeeper: str
    ) -> StatusResponse | None:
        assert (cluster, tls, zookeeper) == ("c", None, "127.0.0.1:1")
        return answer

    monkeypatch.setattr(processes, "ask_status", ask_status)
    child = BrokerChild(
        BrokerSpec(
            data=tmp_path / "b1",
            group="b1",
            node="n1",
            address=Address("127.0.0.1", 1),
            zookeeper="127.0.0.1:1",
            cluster="c",
        )
    )
    if ready:
        assert child.wait_ready(0.0) == answer
    else:
        with pytest.raises(ChildEnded, match="b1/n1"):
            child.wait_ready(0.0)
