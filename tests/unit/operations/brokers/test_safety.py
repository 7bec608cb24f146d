"""What counts as unsafe in a broker group, from what is known of it."""

from typing import Any

import pytest

from vq.coordination.tree.values.audit import UncleanElection
from vq.coordination.tree.values.brokers import GroupState
from vq.operations.brokers.safety import NodeFacts, UnsafeKind, unsafe


def state(*insync: str, master: str = "n1", left: tuple[str, ...] = ()) -> GroupState:
    return GroupState(epoch=3, master=master, insync=insync, incarnations={}, left=left)


def topic(name: str = "t", **more: Any) -> dict[str, Any]:
    return {
        "topic": name,
        "partition": 0,
        "state": "rw",
        "min_insync": 1,
        "flush_async": False,
        "replication_async": False,
        "not_copied": "",
        **more,
    }


def node(
    *partitions: dict[str, Any],
    master: bool = False,
    lag: int | None = None,
    diverged: tuple[int, int] = (0, 0),
) -> NodeFacts:
    files, size = diverged
    raw = {
        "master": master,
        "partitions": partitions or (topic(),),
        "diverged_files": files,
        "diverged_bytes": size,
    }
    return NodeFacts(lag, None if lag is None else 12.3, raw)


MASTER, SLAVE, SILENT = node(master=True), node(lag=0), NodeFacts()
EMPTY = NodeFacts(raw={**(MASTER.raw or {}), "partitions": ()})
KINDS = UnsafeKind


@pytest.mark.parametrize(
    ("group", "nodes", "expected"),
    [
        (None, {"n1": SLAVE}, {}),
        (
            state("n2"),
            {},
            {
                KINDS.NO_MASTER: "b1: no node leads it. In sync: n2 (not registered). `vq broker` "
                "of one of them starts it"
            },
        ),
        (state("n1"), {"n1": MASTER}, {}),
        (state("n1", "n2"), {"n1": MASTER, "n2": SLAVE}, {}),
        (state("n1"), {"n1": EMPTY, "n2": NodeFacts(raw=SLAVE.raw)}, {}),  # nothing to copy yet
        (state("n1", "n2"), {"n1": SILENT, "n2": SLAVE}, {}),  # the silence is told elsewhere
        (
            state("n1"),
            {"n1": MASTER, "n2": node(lag=2048)},
            {
                KINDS.NOT_IN_SYNC: "b1/n2 is not in sync and cannot take over; it lacks "
                "2.0 KiB, 12.3 s",
                KINDS.ALONE: "b1: only n1 is in sync; nothing takes over from it",
            },
        ),
        (
            state("n1", "n3"),
            {"n1": MASTER, "n2": SILENT, "n3": SLAVE},
            {
                KINDS.NOT_IN_SYNC: "b1/n2 is not in sync and cannot take over; what it lacks is "
                "not known"
            },
        ),
        (
            state("n1", "n2"),
            {"n1": MASTER},
            {
                KINDS.NOT_REGISTERED: "b1/n2 is in sync and not registered; sends wait until it "
                "leaves the set"
            },
        ),
        (
            state("n1", left=("n2", "n3")),
            {"n1": MASTER, "n3": SLAVE},
            {
                KINDS.AWAY: "b1: n2 was in sync and does not run: start it, or take it away for "
                "good with `vq broker remove b1/n2`",
                KINDS.NOT_IN_SYNC: "b1/n3 is not in sync and cannot take over; it lacks "
                "0 B, 12.3 s",
                KINDS.ALONE: "b1: only n1 is in sync; nothing takes over from it",
            },
        ),
        (
            state("n1", "n2"),
            {"n2": node()},
            {
                KINDS.NO_MASTER: "b1: no node leads it. In sync: n1 (not registered), n2. "
                "`vq broker` of one of them starts it"
            },
        ),
        (
            state("n1"),
            {"n2": node(lag=2048)},
            {
                KINDS.NO_MASTER: "b1: no node leads it. In sync: n1 (not registered). `vq broker` "
                "of one of them starts it. n2 cannot lead: not in sync"
            },
        ),
        (
            state("n1"),
            {"n1": node(topic(min_insync=2), topic("u"), master=True)},
            {
                KINDS.MIN_INSYNC: "b1: 1 node(s) in sync; topics that need more refuse messages: "
                "t (2)"
            },
        ),
        (
            state("n1"),
            {"n1": node(topic(flush_async=True), topic("u"), master=True)},
            {
                KINDS.WEAK: "b1: topics with flush = async may lose acknowledged messages with "
                "the power of their machines: t"
            },
        ),
        (
            state("n1"),
            {"n1": node(topic("u", replication_async=True), master=True)},
            {
                KINDS.WEAK: "b1: topics with replication = async may lose acknowledged messages "
                "with their master: u"
            },
        ),
        (
            state("n1", "n2"),
            {"n1": MASTER, "n2": node(topic(not_copied="the disk is full"))},
            {KINDS.NOT_COPIED: "b1/n2 cannot copy t-0: the disk is full"},
        ),
        (
            state("n1"),
            {"n1": node(master=True, diverged=(2, 4096))},
            {
                KINDS.DIVERGED: "b1/n1 keeps 2 file(s) of messages that it had to cut from its "
                "logs, 4.0 KiB; see `vq cluster diverged`"
            },
        ),
    ],
)
def test_what_is_unsafe(
    group: GroupState | None, nodes: dict[str, NodeFacts], expected: dict[UnsafeKind, str]
) -> None:
    found = unsafe("b1", group, nodes)
    assert sorted((each.kind, each.text) for each in found) == sorted(expected.items())


def test_what_is_wrong_comes_before_remarks() -> None:
    nodes = {"n1": node(topic(min_insync=2, flush_async=True), master=True, diverged=(1, 1))}
    found = unsafe("b1", state("n1"), nodes)
    assert [(each.kind, each.wrong) for each in found] == [
        (KINDS.MIN_INSYNC, True),
        (KINDS.WEAK, False),
        (KINDS.DIVERGED, False),
    ]


def test_long_lists_are_cut_for_people_and_whole_for_programs() -> None:
    many = [topic(f"t{number}", min_insync=2) for number in range(9)]
    [short] = unsafe("b1", state("n1"), {"n1": node(*many, master=True)})
    assert short.text.endswith("t0 (2), t1 (2), t2 (2), t3 (2), t4 (2) and 4 more")
    assert len(short.topics) == 9
    failing = [topic(f"t{number}", not_copied="why") for number in range(9)]
    found = unsafe("b1", state("n1", "n2"), {"n1": MASTER, "n2": node(*failing)})
    assert len(found) == 6
    assert found[-1].text == "b1/n2 cannot copy 4 further partition(s)"


def test_unclean_elections_are_shown() -> None:
    election = UncleanElection(0, "root@host", "n1", 7, ("n2", "n3"), ("t",))
    [told] = unsafe("b1", state("n1"), {"n1": MASTER}, [election])
    assert (told.kind, told.wrong) == (KINDS.UNCLEAN, False)
    assert told.text == (
        "b1: root@host had n1 lead after epoch 7 at 1970-01-01T00:00:00+00:00, without n2, n3; "
        "acknowledged messages may be lost of: t"
    )


def test_a_deleted_topic_is_not_unsafe() -> None:
    """It refuses messages anyway, and nobody waits for it."""
    deleted = topic(min_insync=2, flush_async=True, state="deleted")
    assert unsafe("b1", state("n1"), {"n1": node(deleted, master=True)}, ()) == ()
