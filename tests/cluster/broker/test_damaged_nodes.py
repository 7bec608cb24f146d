"""A node with damage in its logs does not lead while another one in sync may have everything.

Goal: damage is found while nodes run, and cannot be repaired for a while.

    n1 leads, damaged  ──▶ hands over to n2, without a failed send
    n2 copies, damaged ──▶ n1 is lost ──▶ n2 waits for n1, or n3 leads
    both are damaged   ──▶ nobody hands over, one of them leads
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started
from support.damaged_group import Group

from vq.broker.disks.disk_looks import FLUSH_SILENT_S
from vq.broker.health.repairing import Repairer
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.soundness import HAND_OVER_AFTER_S, RETRY_S, Soundness
from vq.errors import (
    Busy,
    HandOverFailed,
    NotMaster,
    VqError,
)
from vq.operations.topics.verification import verify
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.directory.identity import IDENTITY_NAME
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def group(cluster: MemoryCluster) -> Group:
    return Group(cluster)


async def test_a_master_whose_directory_is_gone_keeps_no_message_and_hands_over(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Its open files would go on taking bytes, which nobody finds again."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    group.cluster.disks["b1"].unlink(DATA / IDENTITY_NAME)
    await until(lambda: "data directory is gone" in caplog.text)
    with pytest.raises(Busy, match=r"data directory .* of broker b1/n1 is gone"):
        await client.put("t", 0, [message(b"x")])
    assert [each for each in (await group.status("n1")).problems if "is gone" in each]
    await group.until_told("n1", True)
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    client.close()


async def test_a_master_whose_flush_hangs_hands_over_without_an_answer_to_its_puts(
    group: Group,
) -> None:
    """They are with the successor, and nobody can tell when their flush ends here."""
    await group.begin("n1", "n2")
    client = await Client.connect(group.cluster.network, group.nodes["n1"].address)
    flusher = group.cluster.flushers["b1"]
    flusher.held = True
    waiting = asyncio.ensure_future(client.put("t", 0, [message(b"y")]))
    most_s = FLUSH_SILENT_S + HAND_OVER_AFTER_S + WAIT_S
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=most_s)
    with pytest.raises((VqError, TimeoutError)):
        await waiting
    ends = [each.parts.partitions.channels["t", 0].log.end_offset for each in group.nodes.values()]
    assert ends[0] == ends[1]
    other = await Client.connect(group.cluster.network, group.nodes["n2"].address)
    await other.put("t", 0, [message(b"z")])
    flusher.release()
    client.close()
    other.close()


async def test_a_copy_whose_directory_is_gone_is_in_sync_no_more(group: Group) -> None:
    """It would acknowledge what it does not keep; it copies again when the directory is back."""
    await group.begin("n1", "n2")
    disk = group.cluster.disks["b1-n2"]
    disk.rename(DATA / IDENTITY_NAME, DATA / "@away")
    await group.cluster.until_in_sync("n1")
    assert [each for each in (await group.status("n2")).problems if "is gone" in each]
    disk.rename(DATA / "@away", DATA / IDENTITY_NAME)
    await group.cluster.until_in_sync("n1", "n2")
    assert not (await group.status("n2")).problems


async def test_a_master_that_cannot_repair_its_damage_hands_over(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """After a while; it goes on copying, and is repaired later."""
    await group.begin("n1", "n2")
    group.damage("n1")
    await group.until_told("n1", True)
    assert (await group.cluster.group_state()).master == "n1"
    await group.put("n1")
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    await group.cluster.until_in_sync("n1", "n2")
    await group.put("n2")
    no_repair()
    await group.until_told("n1", False)
    assert group.repairer("n1").count == 1
    assert (await group.cluster.group_state()).epoch == 2, "nothing is gained by going back"


async def test_damage_that_is_repaired_at_once_changes_nothing(group: Group) -> None:
    await group.begin("n1", "n2")
    group.damage("n1")
    await until(lambda: group.repairer("n1").count == 1)
    await asyncio.sleep(2 * HAND_OVER_AFTER_S)
    state = await group.cluster.group_state()
    assert (state.master, state.epoch) == ("n1", 1)


async def test_nodes_that_are_both_damaged_do_not_hand_over_to_each_other(
    group: Group, no_repair: Callable[[], None]
) -> None:
    await group.begin("n1", "n2")
    group.damage("n1", 1)
    group.damage("n2", 2)
    await group.until_told("n1", True)
    await group.until_told("n2", True)
    await asyncio.sleep(HAND_OVER_AFTER_S + 2 * RETRY_S)
    state = await group.cluster.group_state()
    assert (state.master, state.epoch) == ("n1", 1)
    await group.put("n1")


async def test_a_damaged_copy_does_not_take_over_from_a_lost_master(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """It says for whom it waits. The other one leads when it is back, and has what is missing."""
    await group.begin("n1", "n2")
    group.damage("n2")
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    [problem] = (await group.status("n2")).problems
    assert "has damage in its logs that it has not repaired" in problem
    assert "it waits for n1" in problem
    client = await Client.connect(group.cluster.network, group.nodes["n2"].address)
    with pytest.raises(NotMaster, match="it waits for n1"):
        await client.put("t", 0, [message(b"x")])
    assert not group.nodes["n2"].epoch
    await group.start("n1")
    await until(lambda: group.nodes["n1"].epoch > 1)
    no_repair()
    await group.until_told("n2", False)


async def test_a_third_node_leads_instead_of_a_damaged_one(
    group: Group, no_repair: Callable[[], None]
) -> None:
    await group.begin("n1", "n2", "n3")
    group.damage("n2")
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n3"].epoch == 2)
    assert not group.nodes["n2"].epoch
    await group.put("n3")


async def test_damaged_copies_repair_each_other_when_their_master_is_lost(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """One of them leads then, though the old master is not back."""
    await group.begin("n1", "n2", "n3")
    group.damage("n2")
    group.damage("n3", 2)
    await group.until_told("n2", True)
    await group.until_told("n3", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    no_repair()
    await until(lambda: any(group.nodes[each].epoch == 2 for each in ("n2", "n3")))
    for name in ("n2", "n3"):
        await group.until_told(name, False)
        assert group.repairer(name).count == 1


async def test_of_damaged_nodes_one_leads_when_all_are_there(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Nobody has everything: the group is not down for that."""
    await group.begin("n1", "n2")
    group.damage("n1", 1)
    group.damage("n2", 2)
    await group.until_told("n1", True)
    await group.until_told("n2", True)
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].parts.context.role.waits != "")
    disk = group.cluster.disks["b1"]
    disk.unlink(DATA / "t" / "0" / CHECKPOINT_NAME)  # its next start reads everything
    await group.start("n1")
    await until(lambda: any(node.epoch > 1 for node in group.nodes.values()))


async def test_a_damaged_node_that_is_in_sync_alone_leads(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Also with a new registration."""
    await group.begin("n1", "n2")
    await group.kill("n2")
    await group.cluster.until_in_sync("n1")
    group.damage("n1")
    await group.until_told("n1", True)
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    await until(lambda: group.nodes["n1"].epoch == 2)
    await group.until_told("n1", True)
    await group.put("n1")


async def test_a_damaged_master_whose_session_ends_leaves_the_lead_to_another_node(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """A new registration has to claim the group, as any other node."""
    await group.begin("n1", "n2")
    group.damage("n1")
    await group.until_told("n1", True)
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    await until(lambda: group.nodes["n2"].epoch == 2)
    await group.cluster.until_in_sync("n1", "n2")


async def test_an_operator_switches_to_no_damaged_node(
    group: Group, no_repair: Callable[[], None]
) -> None:
    """Unless the master has damage, too."""
    await group.begin("n1", "n2")
    group.damage("n2")
    await group.until_told("n2", True)
    client = await group.cluster.prove(
        await Client.connect(group.cluster.network, group.nodes["n1"].address)
    )
    with pytest.raises(HandOverFailed, match="n2' cannot take over, it has damage in its logs"):
        await client.call(Command.HAND_OVER, wire.HandOverRequest(node="n2"))
    group.damage("n1", 2)
    await group.until_told("n1", True)
    answer, _ = await client.call(Command.HAND_OVER, wire.HandOverRequest(node="n2"))
    assert answer.node == "n2"


async def test_all_replicas_are_verified(group: Group, no_repair: Callable[[], None]) -> None:
    """Each node says what it found; one in sync that is down is named."""
    await group.begin("n1", "n2")
    group.damage("n2", 2)
    await group.until_told("n2", True)
    async with started(group.cluster) as client:
        one, two = await verify(client, ["t"])
        assert (one.node, one.damaged, one.error) == ("n1", 0, "")
        assert (two.node, two.damaged, two.error) == ("n2", 1, "")
        assert two.damage is not None
        assert "t-0 on b1/n2: " in str(two.damage[0])
        await group.kill("n2")
        _, two = await verify(client, ["t"])
    assert two.damaged is None
    assert "n2" in two.error or "b1-n2" in two.error


# Defects -----------------------------------------------------------------------------------------
def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Have the next call of an asynchronous method fail as no call should; return what failed."""
    method, failed = getattr(owner, name), list[str]()

    async def fail(self: object, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(name)
            raise KeyError("a bug")
        return await method(self, *args, **options)

    monkeypatch.setattr(owner, name, fail)
    return failed


async def test_a_damaged_master_hands_over_after_a_defect_in_that(
    group: Group, no_repair: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Soundness, "_maybe_hand_over")
    group.damage("n1")
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=HAND_OVER_AFTER_S + WAIT_S)
    assert failed


async def test_damage_is_repaired_after_a_defect_in_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Repairer, "_sources")
    group.damage("n1")
    await until(lambda: group.repairer("n1").count == 1)
    assert failed


async def test_a_node_takes_over_after_a_defect_in_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.begin("n1", "n2")
    failed = fail_once(monkeypatch, Mastership, "take")
    await group.kill("n1")
    await until(lambda: group.nodes["n2"].epoch == 2)
    assert failed
    await group.put("n2")
