"""The doctor's judgement: a table of what was measured and what is concluded."""

import pytest

from vq.operations.brokers.disks import DiskState
from vq.operations.brokers.safety import Unsafe, UnsafeKind
from vq.operations.cluster import checks
from vq.operations.cluster.checks import ArchiveFacts, BrokerAnswer, Finding, Level

GIB = 1 << 30


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (checks.part("java", "/usr/bin/java", ""), Level.OK),
        (checks.part("java", None, "no Java was found"), Level.WARN),
        (checks.client_loops(compiled=True), Level.OK),
        (checks.client_loops(compiled=False), Level.WARN),
        (checks.open_files(65_536, 65_536), Level.OK),
        (checks.open_files(1_024, 65_536), Level.WARN),
        (checks.open_files(1_023, 65_536), Level.FAIL),
        (checks.open_files(4_096, 4_096), Level.OK),
        (checks.disk_space("/d", 50 * GIB, 100 * GIB, warn_at=0.75, refuse_at=0.9), Level.OK),
        (checks.disk_space("/d", 20 * GIB, 100 * GIB, warn_at=0.75, refuse_at=0.9), Level.WARN),
        (checks.disk_space("/d", 5 * GIB, 100 * GIB, warn_at=0.75, refuse_at=0.9), Level.FAIL),
        (checks.disk_space("/d", 25, 100, warn_at=0.75, refuse_at=0.9), Level.WARN),
        (checks.disk_space("/d", 25, 100, warn_at=0.5, refuse_at=0.75), Level.FAIL),
        (checks.disk_space("/d", 0, 0, warn_at=0.75, refuse_at=0.9), Level.FAIL),
        (checks.disk_sync("/d", [0.001, 0.002, 0.5]), Level.OK),
        (checks.disk_sync("/d", [0.03, 0.04, 0.05]), Level.WARN),
        (checks.data_directory("/d", "/d", None), Level.OK),
        (checks.data_directory("/d", "/d", "Permission denied"), Level.FAIL),
        (checks.broker_port("127.0.0.1:8123", None, None), Level.OK),
        (checks.broker_port("127.0.0.1:8123", "in use", "broker b1/n1 of default"), Level.OK),
        (checks.broker_port("127.0.0.1:8123", "in use", None), Level.WARN),
        (checks.zookeeper_servers({"a:1": "3.9.5"}), Level.OK),
        (checks.zookeeper_servers({"a:1": "unknown"}), Level.OK),
        (checks.zookeeper_servers({"a:1": "3.9.5", "b:1": None}), Level.WARN),
        (checks.zookeeper_servers({"a:1": None, "b:1": None}), Level.FAIL),
        (checks.zookeeper_servers({"a:1": "3.5.0"}), Level.OK),
        (checks.zookeeper_servers({"a:1": "3.4.14"}), Level.FAIL),
        (checks.zookeeper_session([0.001], None), Level.OK),
        (checks.zookeeper_session([0.2], None), Level.WARN),
        (checks.zookeeper_session([], "no session"), Level.FAIL),
        (checks.clock_skew({"b1/n1": 0.01, "b2/n1": -0.02}), Level.OK),
        (checks.clock_skew({"b1/n1": 0.6, "b2/n1": -0.6}), Level.WARN),
        (checks.clock_skew({"b1/n1": 90.0}), Level.FAIL),
    ],
)
def test_levels(finding: Finding, level: Level) -> None:
    assert finding.level is level


def test_whatever_is_not_ok_says_what_to_do() -> None:
    findings = [
        checks.part("java", None, "none"),
        checks.open_files(256, 256),
        checks.disk_space("/d", 1, 100, warn_at=0.75, refuse_at=0.9),
        checks.data_directory("/d", "/d", "Permission denied"),
        checks.broker_port("127.0.0.1:8123", "in use", None),
        checks.zookeeper_servers({"a:1": None}),
        checks.zookeeper_session([], "no session"),
        checks.no_brokers(is_first=False),
        checks.no_brokers(is_first=True),
        *checks.brokers({"b1": False}, [BrokerAnswer("b2/n1", "h:1", error="TimedOut: 5 s")]),
    ]
    assert all(finding.remedy for finding in findings)
    assert all(finding.level is not Level.OK for finding in findings)


def test_the_cause_is_shown_when_no_server_answers() -> None:
    """An error that says why sends its reader to the doctor, who must not say less."""
    found = checks.zookeeper_servers({"a:1": None, "b:1": None}, "a:1 refused the connection")
    assert found.detail == "a:1 refused the connection"


def test_damage_hides_no_other_problem_of_its_broker() -> None:
    findings = checks.brokers(
        {"b1": True},
        [BrokerAnswer("b1/n1", "h:1", bad_partitions=("a",), damage=("b",), problems=("c",))],
    )
    assert [f.detail for f in findings if f.check == "broker b1/n1"] == [
        "h:1: a",
        "h:1: b",
        "h:1: c",
    ]


def test_every_broker_and_every_group_without_master_is_a_line() -> None:
    findings = checks.brokers(
        {"b1": True, "b2": False},
        [
            BrokerAnswer("b1/n1", "h:1", trip_s=0.001, skew_s=0.002),
            BrokerAnswer("b3/n1", "h:3", bad_partitions=("t-0 is quarantined (damage at 88)",)),
            BrokerAnswer("b4/n1", "h:4", problems=("new connections wait: no descriptor",)),
        ],
    )
    assert [(finding.check, finding.level) for finding in findings] == [
        ("group b2", Level.FAIL),
        ("broker b1/n1", Level.OK),
        ("broker b3/n1", Level.FAIL),
        ("broker b4/n1", Level.FAIL),
        ("clocks", Level.OK),
    ]


def test_what_is_unsafe_in_a_group_is_a_finding_that_says_what_to_do() -> None:
    """Remarks are none: nothing is wrong."""
    unsafe = [Unsafe(kind, "b1", "", (), f"b1: {kind}") for kind in UnsafeKind]
    found = checks.brokers({"b1": False}, [BrokerAnswer("b1/n1", "h:1")], unsafe)
    failed = [each for each in found if each.level is Level.FAIL]
    assert [each.detail for each in failed] == [each.text for each in unsafe if each.wrong]
    assert all(each.check == "group b1" and each.remedy for each in failed)


def test_a_group_that_cannot_be_read_says_why() -> None:
    found = checks.brokers({"b1": False}, [], causes={"b1": "znode 'brokers/b1' has '{'"})
    assert "znode 'brokers/b1'" in found[0].detail


def test_a_certificate_that_expires_soon_is_a_warning() -> None:
    """Within the last days the broker says so itself."""
    day = 86_400.0
    for left_s, level in ((40 * day, Level.OK), (29.5 * day, Level.WARN)):
        answer = BrokerAnswer("b1/n1", "h:1", certificate_left_s=left_s)
        found = checks.brokers({"b1": True}, [answer])[0]
        assert found.level is level
    assert "expires in 29 days" in found.detail
    told = BrokerAnswer("b1/n1", "h:1", certificate_left_s=day, problems=("expires in 1 days",))
    assert [each.level for each in checks.brokers({"b1": True}, [told])][:-1] == [Level.FAIL]


def test_damage_that_is_not_shown_is_counted() -> None:
    """A broker tells of the first ranges, and how many there are."""
    answer = BrokerAnswer("b1/n1", "h:1", damage=["t-0 is damaged"] * 8, damaged_ranges=64)
    found = checks.brokers({"b1": True}, [answer])[0]
    assert found.level is Level.FAIL
    assert f"and {64 - found.detail.count('t-0')} more" in found.detail


def test_a_broker_that_is_silent_has_no_clock() -> None:
    findings = checks.brokers({"b1": True}, [BrokerAnswer("b1/n1", "h:1", error="no answer")])
    assert [finding.check for finding in findings] == ["broker b1/n1"]


def test_a_disk_that_fills_is_a_warning_and_one_told_as_a_problem_is_no_second_finding() -> None:
    def disk(level: str, hours: float | None) -> DiskState:
        return DiskState("/d", 5 << 30, 10 << 30, level, 1 << 30, hours, 0)

    def found(disk: DiskState, *problems: str) -> list[tuple[Level, str]]:
        answer = BrokerAnswer("b1/n1", "h:1", disks=(disk,), problems=problems)
        return [(each.level, each.detail) for each in checks.brokers({"b1": True}, [answer])[:-1]]

    assert [level for level, _ in found(disk("ok", None))] == [Level.OK]
    assert [level for level, _ in found(disk("ok", 24.1))] == [Level.OK]
    [(level, text)] = found(disk("ok", 23.9))
    assert level is Level.WARN
    assert "50.0% full, 5.0 GiB are free: full in 23.9 h" in text
    [(level, text)] = found(disk("relieve", None))
    assert level is Level.WARN
    assert "deleted early" in text
    assert found(disk("refuse", 0.0), "full") == [(Level.FAIL, "h:1: full")]


def test_what_deleted_topics_hold_is_told_while_a_disk_fills() -> None:
    """They could be removed for good; elsewhere it is nobody's business."""
    deleted = {f"t{n}": n << 30 for n in range(1, 8)}

    def found(level: str, *problems: str) -> list[str]:
        disk = DiskState("/d", 1 << 30, 10 << 30, level, None, None, 0)
        answer = BrokerAnswer("b1/n1", "h:1", disks=(disk,), problems=problems, deleted=deleted)
        return [each.detail for each in checks.brokers({"b1": True}, [answer])[:-1]]

    assert len(found("ok")) == 1
    for told in (found("warn"), found("refuse", "full")):
        assert told[1:] == [
            "h:1: deleted topics hold 28.0 GiB while a disk fills: t7, t6, t5, t4, t3 and 2 more"
        ]


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (ArchiveFacts(2), Level.OK, "2 topic(s) have their blocks archived"),
        (ArchiveFacts(2, quiet_s=25 * 3600), Level.OK, "2 topic(s)"),
        (ArchiveFacts(2, quiet_s=27 * 3600), Level.WARN, "no daily run for 27 hours, and 2 topic"),
        (ArchiveFacts(2, "t-0: full", 27 * 3600), Level.WARN, "the last run has failed: t-0: full"),
    ],
)
def test_a_run_of_the_archive_that_failed_or_did_not_come_is_a_warning(
    facts: ArchiveFacts, level: Level, text: str
) -> None:
    [finding] = checks.archive(facts)
    assert (finding.check, finding.level) == ("archive", level)
    assert text in finding.detail
    assert ("vq archive history" in finding.remedy) is (level is Level.WARN)


def test_without_a_topic_that_archives_runs_are_not_judged() -> None:
    assert checks.archive(ArchiveFacts(0, "odd", 1e9)) == []
