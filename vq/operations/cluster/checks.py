"""Findings from measured values. Plain values in, findings out; no I/O.

A check that fails means that something vq needs does not work now; a warning, that it works but
not as one would want it in production, or only a part (such as ``vq standalone``) would not.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.operations.base.sizes import bytes_text
from vq.operations.brokers.disks import DiskState
from vq.operations.brokers.safety import Unsafe, UnsafeKind

NOFILE_WARN = 4_096
NOFILE_FAIL = 1_024
SYNC_WARN_S = 0.020
ZOOKEEPER_LATENCY_WARN_S = 0.050
SKEW_WARN_S = 1.0
SKEW_FAIL_S = 60.0
#: A certificate that expires so soon is to be renewed.
CERTIFICATE_WARN_S = 30 * 86_400.0
#: A day of 25 hours, and an hour in which it is looked whether a run is due.
ARCHIVE_QUIET_WARN_S = 26 * 3600.0
#: Damaged ranges of one broker that are shown; `vq cluster status` shows all.
_DAMAGE_SHOWN = 5
#: Groups, topics and partitions that are named in a finding about offsets.
_NAMED = 5
#: Deleted topics that are named, those with the most bytes.
_DELETED_SHOWN = 5
ZOOKEEPER_MIN = (3, 5)


class Level(enum.StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; ``remedy`` says what to do, "" when all is well."""

    check: str
    level: Level
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Level.OK, detail)


def warn(check: str, detail: str, remedy: str) -> Finding:
    """Return a finding that works but should be better."""
    return Finding(check, Level.WARN, detail, remedy)


def fail(check: str, detail: str, remedy: str) -> Finding:
    """Return a finding that must be repaired."""
    return Finding(check, Level.FAIL, detail, remedy)


# This machine ---------------------------------------------------------------------------------
def part(check: str, found: str | None, why_not: str) -> Finding:
    """Judge a part that only ``vq standalone`` needs: Java, or the ZooKeeper jars."""
    if found is not None:
        return ok(check, found)
    return warn(check, why_not, "needed only to run ZooKeeper here (`vq standalone`, `make demo`)")


def client_loops(*, compiled: bool) -> Finding:
    """Judge how the loops run that a client goes through for every message."""
    if compiled:
        return ok("client loops", "compiled")
    return warn(
        "client loops",
        "in Python, which takes clients more time per message",
        "install a C compiler and Python's headers (Debian: gcc python3-dev), then vq anew",
    )


def open_files(soft: int, hard: int) -> Finding:
    """Judge the limit of open files: connections and block files each take one."""
    detail = f"limit {soft}, can be raised to {hard}"
    remedy = (
        f"raise it to {NOFILE_WARN} or more where the broker is started: `ulimit -n {NOFILE_WARN}`,"
        " or LimitNOFILE= of its systemd unit"
    )
    if soft < NOFILE_FAIL:
        return fail("open files", detail, remedy)
    return ok("open files", detail) if soft >= NOFILE_WARN else warn("open files", detail, remedy)


def disk_space(place: str, free: int, total: int, *, warn_at: float, refuse_at: float) -> Finding:
    """Judge the free space of a file system by the shares at which a broker warns and refuses."""
    used = 1.0 if total == 0 else 1 - free / total
    detail = f"{place}: {bytes_text(free)} free of {bytes_text(total)}, {used:.0%} in use"
    remedy = "free space, delete topics, or put the data on a larger file system"
    if used >= refuse_at:
        return fail("disk space", f"{detail}; brokers refuse sends from {refuse_at:.0%}", remedy)
    if used >= warn_at:
        return warn("disk space", f"{detail}; brokers warn from {warn_at:.0%}", remedy)
    return ok("disk space", detail)


def disk_sync(place: str, seconds: Sequence[float]) -> Finding:
    """Judge how long making a small write durable takes; every sync send waits for one."""
    median = sorted(seconds)[len(seconds) // 2]
    detail = f"{place}: {median * 1000:.2f} ms (median of {len(seconds)})"
    if median < SYNC_WARN_S:
        return ok("fdatasync", detail)
    return warn(
        "fdatasync", detail, "sends wait for this: use a disk with a fast flush, or flush=async"
    )


def data_directory(wanted: str, place: str, error: str | None) -> Finding:
    """Judge whether the data directory can be written; ``place``: it, or the nearest above it."""
    seen = place if wanted == place else f"{wanted} does not exist; its nearest directory {place}"
    if error is None:
        return ok("data directory", f"{seen} can be written")
    return fail("data directory", f"{seen}: {error}", "make it, or let this user write there")


def silent_directory(place: str, waited_s: float) -> Finding:
    """Judge a data directory that has not answered for so long."""
    return fail(
        "data directory",
        f"{place} does not answer within {waited_s:g} s",
        "if it is a mount, look at its server or device",
    )


def certificate(left_s: float, refusal: str) -> Finding:
    """Judge the certificate of a broker here, by when it expires and why others refuse it."""
    days = f"expires in {int(left_s / 86_400)} days"
    remedy = "docs/howto/use-tls.md says how to make one"
    if refusal:
        return fail("tls", refusal, remedy)
    return warn("tls", days, remedy) if left_s < CERTIFICATE_WARN_S else ok("tls", days)


def broker_port(address: str, error: str | None, broker: str | None) -> Finding:
    """Judge the port a broker would listen on: free, or taken, perhaps by a broker."""
    if broker is not None:
        return ok("broker port", f"{address}: {broker} listens there")
    if error is None:
        return ok("broker port", f"{address} is free")
    return warn(
        "broker port",
        f"{address} cannot be used: {error}, and no vq broker answers at this address",
        "stop what listens there, unless it is this broker already; or give the broker another "
        "--port",
    )


# ZooKeeper and the brokers --------------------------------------------------------------------
def zookeeper_servers(
    versions: Mapping[str, str | None], causes: str = "", *, secure: bool = False
) -> Finding:
    """Judge the servers: ``address -> version``, None for one that does not answer.

    ``causes`` says why, if none of them answers. ``secure``: they were asked with TLS.
    """
    shown = ", ".join(f"{a} {v or 'does not answer'}" for a, v in versions.items())
    if secure:
        shown += "; with TLS, the names of servers are checked"
    silent = [address for address, version in versions.items() if version is None]
    if len(silent) == len(versions):
        return fail(
            "zookeeper",
            causes or shown,
            "start it there, or name the right servers with --zookeeper; for development "
            "`vq standalone` starts one",
        )
    numbers = [_number(version) for version in versions.values() if version is not None]
    old = [number for number in numbers if number and number < ZOOKEEPER_MIN]
    if old:
        return fail("zookeeper", shown, "vq needs ZooKeeper 3.5 or later; upgrade it")
    if silent:
        return warn("zookeeper", shown, f"look at {', '.join(silent)}")
    return ok("zookeeper", shown)


def _number(version: str) -> tuple[int, ...]:
    parts = version.split("-")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def zookeeper_session(seconds: Sequence[float], error: str | None) -> Finding:
    """Judge a session: does it open, and how long does an answered call take?"""
    if error is not None:
        return fail("session", error, "look at the ZooKeeper servers' logs")
    median = sorted(seconds)[len(seconds) // 2]
    detail = f"answers in {median * 1000:.1f} ms (median of {len(seconds)})"
    if median < ZOOKEEPER_LATENCY_WARN_S:
        return ok("session", detail)
    return warn("session", detail, "give ZooKeeper a disk of its own and bring it nearer")


def tree(open_paths: Sequence[str], *, secured: bool, loopback: bool) -> Finding:
    """Judge who may write to the tree: does ZooKeeper know those who may?"""
    if secured and not open_paths:
        return ok("tree", "only those whom ZooKeeper knows may use it")
    if secured:
        shown_paths = ", ".join(open_paths)
        return warn("tree", f"anybody may use {shown_paths}", "run `vq zk secure --yes`")
    if loopback:
        return ok("tree", "anybody on this machine may use it: ZooKeeper is on loopback")
    return warn(
        "tree",
        "anybody who reaches ZooKeeper may change it",
        "give it identities: docs/howto/secure-zookeeper.md",
    )


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    """The answer of one registered broker; ``error`` is None if it answered."""

    name: str
    address: str
    error: str | None = None
    trip_s: float = 0.0
    skew_s: float = 0.0
    bad_partitions: Sequence[str] = ()
    damage: Sequence[str] = ()
    damaged_ranges: int = 0
    problems: Sequence[str] = ()
    disks: Sequence[DiskState] = ()
    deleted: Mapping[str, int] = field(default_factory=dict)
    failing_jobs: Sequence[str] = ()
    certificate_left_s: float | None = None  # until it expires; None: the broker has no TLS


#: What to do about each kind that is wrong; docs/howto/look-at-a-cluster.md has the same.
_UNSAFE_REMEDIES: Final = {
    UnsafeKind.NO_MASTER: "start one of the nodes that are in sync: they have all messages",
    UnsafeKind.NOT_REGISTERED: "wait a moment; if it stays in the set, look at the master's log",
    UnsafeKind.AWAY: "start it; if it does not come back, take it away with `vq broker remove`",
    UnsafeKind.NOT_IN_SYNC: "wait while its lag falls (`vq cluster status`); else see its log",
    UnsafeKind.ALONE: "start the other nodes of the group, and wait until they are in sync",
    UnsafeKind.MIN_INSYNC: "start the missing nodes, or `vq topic alter NAME --min-insync N`",
    UnsafeKind.NOT_COPIED: "remove the cause; the node tries again by itself",
}


def no_brokers(*, is_first: bool, others: str = "") -> Finding:
    """Judge a cluster without brokers.

    Args:
        is_first: The first one is being set up.
        others: Which clusters there are; "": not known.
    """
    detail = "; ".join(filter(None, ("none has ever registered in this cluster", others)))
    if is_first:
        return warn("brokers", detail, "start this one: vq broker --config FILE")
    remedy = "start one: vq broker --config FILE; or name another --cluster or --zookeeper"
    return fail("brokers", detail, remedy)


def brokers(
    groups: Mapping[str, bool],
    answers: Sequence[BrokerAnswer],
    unsafe: Sequence[Unsafe] = (),
    causes: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Judge the brokers of a cluster that has some.

    Args:
        groups: Whether each has a master.
        answers: Those of the registered brokers.
        unsafe: What is unsafe in the groups; remarks are left out.
        causes: Why nothing is known of a group's nodes, by group.
    """
    told = {each.group for each in unsafe if each.kind is UnsafeKind.NO_MASTER}
    findings = [
        fail(
            f"group {name}",
            "has no running master" + (f": {causes[name]}" if causes and name in causes else ""),
            "start its broker; if its process runs, it hangs or does not reach ZooKeeper, see "
            "its log",
        )
        for name, has_master in groups.items()
        if not has_master and name not in told
    ]
    findings += [
        fail(f"group {each.group}", each.text, _UNSAFE_REMEDIES[each.kind])
        for each in unsafe
        if each.wrong
    ]
    for each in answers:
        findings += _answer(each)
    skews = {each.name: each.skew_s for each in answers if each.error is None}
    if skews:
        findings.append(clock_skew(skews))
    return findings


def _answer(answer: BrokerAnswer) -> list[Finding]:
    """Judge one broker: all that is wrong with it, a finding for each kind."""
    check = f"broker {answer.name}"
    if answer.error is not None:
        remedy = (
            "is its advertised address reachable from here? if it hangs, look whether it is "
            "stopped (`ps -o stat`: T; `kill -CONT`) or waits for a disk (D); see its log"
        )
        return [fail(check, f"{answer.address}: {answer.error}", remedy)]
    return list(_troubles(check, answer)) or [
        ok(check, f"{answer.address} answers in {answer.trip_s * 1000:.1f} ms")
    ]


def _troubles(check: str, answer: BrokerAnswer) -> Iterator[Finding]:
    if answer.bad_partitions:
        yield fail(
            check,
            f"{answer.address}: {', '.join(answer.bad_partitions)}",
            "these partitions take no messages; docs/howto/bring-back-a-partition.md says "
            "what to do",
        )
    if answer.damage or answer.damaged_ranges:
        shown = "; ".join(answer.damage[:_DAMAGE_SHOWN])
        ranges = max(len(answer.damage), answer.damaged_ranges)
        more = ranges - min(len(answer.damage), _DAMAGE_SHOWN)
        yield fail(
            check,
            f"{answer.address}: {shown}" + (f"; and {more} more" if more > 0 else ""),
            "stop the broker and put an intact copy of the file back, or have groups skip it "
            "(`vq group reset GROUP --past-damage`); docs/howto/repair-damage.md says how",
        )
    if answer.problems:
        yield fail(
            check,
            f"{answer.address}: {'; '.join(answer.problems)}",
            "if it does not end by itself, the broker's log and docs/operations.md say more",
        )
    if answer.failing_jobs:
        yield warn(
            check,
            f"{answer.address}: the last run of a job failed: {'; '.join(answer.failing_jobs)}",
            "if it does not end by itself, see the broker's log; "
            f"`vq broker jobs {answer.name}` shows when it is tried again",
        )
    full = [str(each) for each in answer.disks if each.needs_attention]
    if full and not answer.problems:  # a broker that refuses messages tells it as a problem
        yield warn(
            check,
            f"{answer.address}: {'; '.join(full)}",
            "free space, keep messages for less long, or add space: "
            "docs/howto/handle-full-disks.md says how",
        )
    if full:
        yield from _deleted(check, answer)
    left_s = answer.certificate_left_s
    if left_s is not None and left_s < CERTIFICATE_WARN_S and not answer.problems:
        yield warn(
            check,
            f"{answer.address}: its TLS certificate expires in {int(left_s / 86_400)} days",
            "write a new one over it, without a restart: docs/howto/use-tls.md says how",
        )


def _deleted(check: str, answer: BrokerAnswer) -> Iterator[Finding]:
    """Judge what deleted topics hold on a broker with a disk that fills."""
    if not sum(answer.deleted.values()):
        return
    names = sorted(answer.deleted, key=lambda name: (-answer.deleted[name], name))
    more = len(names) - _DELETED_SHOWN
    shown = ", ".join(names[:_DELETED_SHOWN]) + (f" and {more} more" if more > 0 else "")
    size = bytes_text(sum(answer.deleted.values()))
    yield warn(
        check,
        f"{answer.address}: deleted topics hold {size} while a disk fills: {shown}",
        "they can be brought back until their time is up (`vq topic list --deleted`); `vq "
        "topic delete NAME --now` removes one for good: its data lie in the trash for "
        "trash_keep_s",
    )


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """What is known of the runs of the archive.

    Attributes:
        topics: How many topics have their blocks archived.
        failure: Why the newest run has failed; "": it has not, or there is none.
        quiet_s: Since when no daily run was made; None: not known, nothing was missed yet.
    """

    topics: int
    failure: str = ""
    quiet_s: float | None = None


def archive(facts: ArchiveFacts) -> list[Finding]:
    """Judge the runs of the archive; nothing if no topic wants one."""
    if not facts.topics:
        return []
    remedy = "`vq archive history` shows the runs, the brokers' logs why; then `vq archive run`"
    if facts.failure:
        return [warn("archive", f"the last run has failed: {facts.failure}", remedy)]
    if facts.quiet_s is not None and facts.quiet_s > ARCHIVE_QUIET_WARN_S:
        hours = facts.quiet_s / 3600
        return [
            warn(
                "archive",
                f"no daily run for {hours:.0f} hours, and {facts.topics} topic(s) want one",
                f"do all brokers have the same archive_at, and a right clock? {remedy}",
            )
        ]
    return [ok("archive", f"{facts.topics} topic(s) have their blocks archived")]


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What ZooKeeper tells of the offsets of a consumer group.

    Attributes:
        group: Its name.
        store: Where they are, by its contract: ``zookeeper``, ``any``, or the identity of a store.
        members: How many consumers are alive.
        orders: Partitions whose offset in ZooKeeper an operator has set, and no member has put into
            the store for long.
        homeless: Topics, and partitions, that do not exist, in which it has offsets.
    """

    group: str
    store: str
    members: int = 0
    orders: Sequence[str] = ()
    homeless: Sequence[str] = ()


def offset_stores(groups: Sequence[GroupOffsets]) -> Iterator[Finding]:
    """Judge where groups have their offsets; nothing if all is well in ZooKeeper.

    A store outside of it is known by its identity alone, so nobody but a member can look into it.
    """
    for each in groups:
        check = f"offsets of {each.group}"
        if each.orders and each.members:
            detail = (
                f"no member has put what was set for {_named(each.orders)} into the store "
                f"{each.store}, with {each.members} member(s)"
            )
            yield warn(check, detail, f"`vq group describe {each.group}` says why")
        if each.homeless:
            detail = f"there are some of {_named(each.homeless)}, which does not exist"
            remedy = (
                f"`vq group forget {each.group} TOPIC` deletes those of a topic; if ZooKeeper was "
                "put back from a backup, see docs/howto/back-up.md"
            )
            yield warn(check, detail, remedy)
    outside = [each for each in groups if each.store != "zookeeper"]
    if outside:
        stores = _named([f"{each.group}: {each.store}" for each in outside])
        detail = f"{len(outside)} group(s) have their offsets elsewhere ({stores})"
        told = "; what ZooKeeper has are copies, and only members reach the stores"
        yield ok("offset stores", detail + told)


def _named(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def clock_skew(skews: Mapping[str, float]) -> Finding:
    """Judge the brokers' clocks: each one's difference from ours, in seconds."""
    spread = max([0.0, *skews.values()]) - min([0.0, *skews.values()])
    detail = ", ".join(f"{name} {skew:+.3f} s" for name, skew in sorted(skews.items()))
    remedy = "synchronise the clocks (chrony, ntpd): message times and retention follow them"
    if spread >= SKEW_FAIL_S:
        return fail("clocks", detail, remedy)
    return warn("clocks", detail, remedy) if spread >= SKEW_WARN_S else ok("clocks", detail)
