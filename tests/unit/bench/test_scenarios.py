"""The list that ``make bench`` runs: names, targets, profiles and peers fit together."""

from pathlib import Path

import vq
from bench import gateway, groups, modes, peers, profile, read_loads, send_loads, sends
from bench.scenarios import SCENARIOS
from vq.cli.bench import workload


def test_scenarios_have_different_names_and_say_what_they_show() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.about and scenario.run.__doc__ for scenario in SCENARIOS)


def test_every_work_has_one_name() -> None:
    tables = (
        workload.WORKS,
        send_loads.WORKS,
        read_loads.WORKS,
        sends.WORKS,
        modes.WORKS,
        groups.WORKS,
        gateway.WORKS,
        peers.WORKS,
    )
    assert len(set().union(*tables)) == sum(map(len, tables))


def test_a_missed_throughput_target_finds_its_profile() -> None:
    wanted = {"small", "sync", "large", "latency", "idle"}
    for scenario in SCENARIOS:
        if scenario.name in wanted:
            for figure in scenario.targets:
                (work,) = profile.works_of([figure])
                assert work in profile.WORKS


def test_every_peer_names_works_that_exist() -> None:
    for peer in peers.PEERS:
        assert {peer.one_by_one, peer.pipelined, peer.consume} <= set(peers.WORKS)


def test_the_collector_is_treated_alike_in_every_client() -> None:
    """It is the worker's to freeze what was made before the clock: no work does so by itself."""
    root = Path(vq.__file__).parent.parent
    works = [*(root / "bench").rglob("*.py"), root / "vq" / "cli" / "bench" / "workload.py"]
    assert [str(each) for each in works if "gc." in each.read_text()] == []


def test_the_product_imports_nothing_of_the_benchmark() -> None:

    for path in Path(vq.__file__).parent.rglob("*.py"):
        assert "import bench" not in path.read_text(), path
        assert "from bench" not in path.read_text(), path
