"""The judge is judged: hand-made histories, one per anomaly, and clean ones.

Every other fault test believes the judge, so it must find each kind of wrong by itself and nothing
in a history that is right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import support.judge
from support.judge import Claim, Commit, Copy, Evidence, Fault, Presence, Reign, judge


def send(value: str) -> dict[str, Any]:
    return {"kind": "send", "value": value}


def sent(value: str, offset: int, partition: int = 0) -> dict[str, Any]:
    return {"kind": "sent", "value": value, "partition": partition, "offset": offset}


def refused(value: str) -> dict[str, Any]:
    return {"kind": "refused", "value": value, "error": "DiskFull"}


def unknown(value: str) -> dict[str, Any]:
    return {"kind": "unknown", "value": value, "error": "TimedOut"}


def received(value: str, offset: int, partition: int = 0) -> dict[str, Any]:
    return {"kind": "received", "value": value, "partition": partition, "offset": offset}


END = {"kind": "end"}
#: Three messages, all acknowledged; most cases start from here.
THREE = [send("a"), send("b"), send("c"), sent("a", 88), sent("b", 200), sent("c", 300), END]
LOG = {0: [(88, "a"), (200, "b"), (300, "c")]}
ALL = [received("a", 88), received("b", 200), received("c", 300)]


def delay(value: str, delay_s: float) -> dict[str, Any]:
    return {"at": 1.0, "kind": "delay", "value": value, "delay_s": delay_s}


def waits(value: str) -> dict[str, Any]:
    return {"kind": "waits", "value": value}


def recall(outcome: str) -> dict[str, Any]:
    return {"kind": "recall", "value": "b", "outcome": outcome}


def later(value: str, offset: int, at: float) -> dict[str, Any]:
    return {**received(value, offset), "at": at}


def add(transaction: str, *values: str) -> list[dict[str, Any]]:
    return [{"kind": "add", "transaction": transaction, "value": value} for value in values]


def asked(transaction: str) -> dict[str, Any]:
    return {"at": 5.0, "kind": "asked", "transaction": transaction}


def ended(transaction: str, state: str) -> dict[str, Any]:
    return {"kind": "ended", "transaction": transaction, "state": state}


#: Two transactions; the second is rolled back.
ADDED = [*add("t", "a", "b"), asked("t"), *add("u", "x"), ended("u", "rolled back")]
TOGETHER = {0: [(88, "a"), (200, "b")]}
#: Two that wait; the second is to be cancelled.
DELAYED = [
    delay("a", 4.0),
    waits("a"),
    delay("b", 4.0),
    waits("b"),
    {"kind": "cancel", "value": "b"},
]
CAME = {0: [(88, "a")]}


def evidence(
    *events: Sequence[Mapping[str, Any]],
    log: Mapping[int, Sequence[tuple[int, str]]] | None = None,
    **more: Any,
) -> Evidence:
    """Histories of the clients c0, c1 … and the log, ``LOG`` unless told."""
    histories = {f"c{number}": each for number, each in enumerate(events)}
    return Evidence(histories=histories, log=LOG if log is None else log, **more)


#: Three nodes, of which the second has a full disk.
HERE = [
    Presence(1, "b1", "n1", there=True, at=1.0),
    Presence(2, "b1", "n2", there=True, at=1.0),
    Presence(3, "b1", "n3", there=True, at=1.0),
    Presence(4, "b1", "n2", there=True, full=True, at=9.0),
]

WRONG = {
    "an acknowledged message is not in the log": (
        "lost",
        evidence(THREE, log={0: [(88, "a"), (300, "c")]}),
    ),
    "a received message is not in the log at the end": (
        "lost",
        evidence([send("a"), unknown("a")], [received("a", 88)], log={0: []}),
    ),
    "the log ends before an acknowledged message": (
        "unseen",
        evidence(THREE, log={0: [(88, "a"), (200, "b")]}),
    ),
    "a message lies in another partition than acknowledged": (
        "misplaced",
        evidence(THREE, log={0: [(88, "a"), (200, "b")], 1: [(88, "c")]}),
    ),
    "a refused message is stored": (
        "aborted",
        evidence([send("a"), refused("a"), END], log={0: [(88, "a")]}),
    ),
    "a refused message is delivered": (
        "aborted",
        evidence([send("a"), refused("a"), END], [received("a", 88)], log={0: [(88, "a")]}),
    ),
    "a message is stored twice in one partition": (
        "duplicate",
        evidence(THREE, log={0: [*LOG[0], (400, "a")]}),
    ),
    "a message of unknown outcome is stored in two partitions": (
        "duplicate",
        evidence([send("a"), unknown("a"), END], log={0: [(88, "a")], 1: [(88, "a")]}),
    ),
    "an acknowledged place holds another message": (
        "misplaced",
        evidence([send("a"), send("b"), sent("a", 88), END], log={0: [(88, "b"), (200, "a")]}),
    ),
    "a consumer saw another message than the log has": (
        "inconsistent",
        evidence(THREE, [received("b", 88)]),
    ),
    "two consumers saw different messages at one place": (
        "inconsistent",
        evidence(THREE, [received("a", 500)], [received("b", 500)]),
    ),
    "the offsets of the log do not rise": (
        "inconsistent",
        evidence(THREE, log={0: [(88, "a"), (300, "c"), (200, "b")]}),
    ),
    "a message is stored that nobody sent": (
        "invented",
        evidence(THREE, log={0: [*LOG[0], (400, "x")]}),
    ),
    "a message is delivered that nobody sent": (
        "invented",
        evidence(THREE, [received("x", 400)]),
    ),
    "one client's messages changed places": (
        "reordered",
        evidence(
            [send("a"), send("b"), unknown("a"), unknown("b"), END],
            log={0: [(88, "b"), (200, "a")]},
        ),
    ),
    "a send has no outcome": ("unsettled", evidence([send("a"), END], log={0: []})),
    "a send has two outcomes": (
        "unsettled",
        evidence([send("a"), unknown("a"), sent("a", 88), END], log={0: [(88, "a")]}),
    ),
    "a consumer passes a message over": (
        "skipped",
        evidence(THREE, [ALL[0], ALL[2]], group=True, claims=[Claim(1, 0, "c1")]),
    ),
    "a consumer goes back": (
        "back",
        evidence(
            THREE,
            [*ALL, ALL[0]],
            group=True,
            claims=[Claim(1, 0, "c1")],
            repeats_allowed=True,
        ),
    ),
    "a consumer starts where nobody committed": (
        "restart",
        evidence(
            THREE,
            [ALL[0]],
            [ALL[2]],
            group=True,
            claims=[Claim(1, 0, "c1"), Claim(3, 0, "c2")],
            commits=[Commit(2, 0, "c1", 200)],
        ),
    ),
    "a consumer receives what it never claimed": (
        "restart",
        evidence(THREE, [ALL[0]], group=True),
    ),
    "a delayed message comes early": (
        "early",
        evidence([*DELAYED, recall("CANCELLED")], [later("a", 88, 4.9)], log=CAME),
    ),
    "a cancelled message is stored": (
        "recalled",
        evidence([*DELAYED, recall("CANCELLED")], log={0: [(88, "a"), (200, "b")]}),
    ),
    "a cancelled message is delivered": (
        "recalled",
        evidence([*DELAYED, recall("CANCELLED")], [later("b", 200, 9.0)], log=CAME),
    ),
    "a delayed message never comes": (
        "lost",
        evidence([*DELAYED, recall("CANCELLED")], log={0: []}),
    ),
    "a message that was on its way when it was to be cancelled never comes": (
        "lost",
        evidence([*DELAYED, recall("DELIVERED")], log=CAME),
    ),
    "a message that could not be cancelled for certain never comes": (
        "lost",
        evidence([*DELAYED, recall("NotMaster")], log=CAME),
    ),
    "a delayed message comes twice": (
        "duplicate",
        evidence([*DELAYED, recall("CANCELLED")], log={0: [(88, "a"), (200, "a")]}),
    ),
    "no delayed message was cancelled": ("void", evidence(DELAYED[:2], log=CAME)),
    "half of a transaction is stored": (
        "half",
        evidence([*ADDED, ended("t", "unknown")], log=CAME),
    ),
    "a committed transaction is not stored": (
        "lost",
        evidence([*ADDED, ended("t", "committed")], log={0: []}),
    ),
    "a message of a transaction that was rolled back is stored": (
        "aborted",
        evidence([*ADDED, ended("t", "committed")], log={**TOGETHER, 1: [(88, "x")]}),
    ),
    "another message lies within a transaction": (
        "split",
        evidence(
            [*ADDED, ended("t", "committed"), send("c"), sent("c", 100), END],
            log={0: [(88, "a"), (100, "c"), (200, "b")]},
        ),
    ),
    "the messages of a transaction change their places": (
        "split",
        evidence([*ADDED, ended("t", "committed")], log={0: [(88, "b"), (200, "a")]}),
    ),
    "a message is received before its commit": (
        "premature",
        evidence([*ADDED, ended("t", "committed")], [later("a", 88, 4.9)], log=TOGETHER),
    ),
    "a transaction stays in doubt": (
        "unsettled",
        evidence([*ADDED, ended("t", "unknown")], log={0: []}),
    ),
    "no transaction is rolled back": (
        "void",
        evidence([*ADDED[:3], ended("t", "committed")], log=TOGETHER),
    ),
    "a stored message is received by nobody": (
        "unread",
        evidence(THREE, ALL[:2], drained=True),
    ),
    "a message is delivered twice without excuse": (
        "repeated",
        evidence(THREE, ALL, [ALL[0]]),
    ),
    "a former owner's commit was taken": (
        "zombie",
        evidence(
            THREE,
            ALL,
            [],
            group=True,
            claims=[Claim(1, 0, "c1"), Claim(2, 0, "c2")],
            commits=[Commit(3, 0, "c1", 300)],
        ),
    ),
    "a committed offset goes back": (
        "rewound",
        evidence(
            THREE,
            ALL,
            group=True,
            claims=[Claim(1, 0, "c1")],
            commits=[Commit(2, 0, "c1", 300), Commit(3, 0, "c1", 200)],
        ),
    ),
    "a commit covers what was never received": (
        "overcommit",
        evidence(
            THREE,
            [ALL[0]],
            group=True,
            claims=[Claim(1, 0, "c1")],
            commits=[Commit(2, 0, "c1", 400)],
        ),
    ),
    "two nodes hold different bytes": (
        "diverged",
        evidence(
            THREE,
            copies=[Copy("n1", 0, 0, b"abcd"), Copy("n2", 0, 2, b"cx")],
            watermarks={0: 4},
        ),
    ),
    "a node lacks what readers may read": (
        "short",
        evidence(
            THREE,
            copies=[Copy("n1", 0, 0, b"abcd"), Copy("n2", 0, 0, b"abc")],
            watermarks={0: 4},
        ),
    ),
    "two masters lead in one epoch": (
        "usurped",
        evidence(THREE, reigns=[Reign(1, "b1", 1, "n1"), Reign(2, "b1", 1, "n2")]),
    ),
    "an epoch falls": (
        "usurped",
        evidence(THREE, reigns=[Reign(1, "b1", 2, "n1"), Reign(2, "b1", 1, "n1")]),
    ),
    "a full node is elected beside one with space, and leads on": (
        "unfit",
        evidence(
            THREE,
            reigns=[Reign(5, "b1", 2, "n2", ("n1", "n2", "n3"), 10.0)],
            presences=[*HERE, Presence(9, "b1", "n2", there=True, full=False, at=20.0)],
        ),
    ),
    "a full node leads to the end beside one with space": (
        "unfit",
        evidence(
            THREE,
            reigns=[
                Reign(5, "b1", 2, "n2", ("n1", "n2", "n3"), 10.0),
                Reign(6, "b1", 2, "n2", ("n2", "n3"), 30.0),
            ],
            presences=HERE,
        ),
    ),
    "a send is refused because ZooKeeper is away": (
        "halted",
        evidence(
            [{**send("a"), "at": 13.1}, {**refused("a"), "at": 14.0}, END],
            log={0: []},
            away=[(1.0, 2.0), (13.0, 40.0)],
        ),
    ),
    "a fault had no effect": (
        "void",
        evidence(THREE, faults=[Fault("kill -9", 0)]),
    ),
    "a fault struck three times and had an effect twice": (
        "void",
        evidence(THREE, faults=[Fault("kill -9", 2, strikes=3)]),
    ),
    "too few sends were acknowledged": (
        "void",
        evidence(THREE, faults=[Fault("kill -9", 1)], acknowledged_min=50),
    ),
    "enough sends for one strike, not for two": (
        "void",
        evidence(THREE, faults=[Fault("kill -9", 2)], acknowledged_min=3),
    ),
}

CLEAN = {
    "everything acknowledged, stored and received once": evidence(
        THREE,
        ALL,
        group=True,
        drained=True,
        claims=[Claim(1, 0, "c1")],
        commits=[Commit(2, 0, "c1", 200), Commit(3, 0, "c1", 400)],
    ),
    "an unknown send is stored, another is not": evidence(
        [send("a"), send("b"), unknown("a"), unknown("b"), END], log={0: [(88, "a")]}
    ),
    "a delayed message comes in time, and the cancelled one never": evidence(
        [*DELAYED, recall("CANCELLED")], [later("a", 88, 5.0)], log=CAME, drained=True
    ),
    "nobody knows whether a message was cancelled": evidence(
        [*DELAYED, delay("c", 1.0), waits("c"), {**recall("CANCELLED"), "value": "c"}], log=CAME
    ),
    "one transaction is committed, and another one is not": evidence(
        [*ADDED, ended("t", "committed")],
        [later("a", 88, 5.1), later("b", 200, 5.1)],
        log=TOGETHER,
        drained=True,
    ),
    "a refused send is not stored": evidence(
        [send("a"), refused("a"), send("b"), sent("b", 88), END], log={0: [(88, "b")]}
    ),
    "a killed producer leaves a send open": evidence(
        [send("a"), sent("a", 88), send("b")], log={0: [(88, "a")]}
    ),
    "a new owner repeats what the dead one had not committed": evidence(
        THREE,
        ALL[:2],
        ALL[1:],
        group=True,
        drained=True,
        repeats_allowed=True,
        claims=[Claim(1, 0, "c1"), Claim(3, 0, "c2")],
        commits=[Commit(2, 0, "c1", 188), Commit(4, 0, "c2", 400)],
    ),
    "nodes differ above the high watermark, and in where they begin": evidence(
        THREE,
        copies=[Copy("n1", 0, 0, b"abcdX"), Copy("n2", 0, 2, b"cdYZ"), Copy("n1", 1, 0, b"")],
        watermarks={0: 4, 1: 0},
    ),
    "each group has its epochs, and a set changes within one": evidence(
        THREE,
        reigns=[
            Reign(1, "b1", 1, "n1"),
            Reign(2, "b2", 1, "n2"),
            Reign(3, "b1", 1, "n1"),
            Reign(4, "b1", 2, "n2"),
        ],
    ),
    "a full node hands over at once, or leads because nobody else can take over": evidence(
        THREE,
        reigns=[
            Reign(5, "b1", 2, "n2", ("n1", "n2", "n3"), 10.0),
            Reign(6, "b1", 3, "n3", ("n1", "n2", "n3"), 12.0),
            Reign(8, "b1", 4, "n2", ("n2", "n3"), 30.0),
            Reign(11, "b1", 4, "n2", ("n2",), 60.0),
            Reign(12, "b2", 1, "n1", ("n1",), 90.0),
        ],
        presences=[
            *HERE,
            Presence(7, "b1", "n3", there=False, at=29.0),
            Presence(9, "b1", "n1", there=True, at=50.0),  # not in sync
            Presence(10, "b1", "n3", there=True, full=True, at=55.0),
        ],
    ),
    "sends are acknowledged while ZooKeeper is away, and others were sent before": evidence(
        [{**send("a"), "at": 13.1}, {**sent("a", 88), "at": 39.9}, END],
        [{**send("b"), "at": 12.9}, {**unknown("b"), "at": 14.0}, END],
        [{**send("c"), "at": 39.0}, {**refused("c"), "at": 40.1}, END],
        log={0: [(88, "a")]},
        away=[(13.0, 40.0)],
    ),
    "two clients' messages interleave": evidence(
        [send("a"), send("c"), sent("a", 88), sent("c", 300), END],
        [send("b"), sent("b", 200), END],
        faults=[Fault("kill -9", 3)],
        acknowledged_min=1,
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_anomaly_is_found(case: str) -> None:
    kind, run = WRONG[case]
    assert kind in judge(run).kinds, str(judge(run))


@pytest.mark.parametrize("case", CLEAN)
def test_a_clean_run_is_clean(case: str) -> None:
    verdict = judge(CLEAN[case])
    assert not verdict.anomalies, str(verdict)


def test_every_kind_has_its_case() -> None:
    """The list at the head of the judge names nothing that is not tried here."""
    assert support.judge.__doc__ is not None
    named = {
        line.split()[0]
        for line in support.judge.__doc__.splitlines()
        if line.startswith("    ") and line[4] != " "
    }
    assert named == {kind for kind, _ in WRONG.values()}
