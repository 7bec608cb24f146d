"""What lies in deploy/, as the programs see it that read it: promtool, linters of containers."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.tool import load_tool
from support.zookeeper import unavailable

from vq.testing.waiting import PROCESSES_WAIT_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"


def program(name: str, package: str) -> str:
    """Return where a program is; skip without it, fail where ``.ci/run`` runs."""
    found = shutil.which(name)
    if found is None:
        unavailable(f"{name} is missing (Debian: apt-get install {package})")
    return str(found)


def run(*command: str, cwd: Path = DEPLOY) -> str:
    """Return what a program that must succeed has printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROCESSES_WAIT_S,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def promtool() -> str:
    return program("promtool", "prometheus")


def test_prometheus_reads_the_settings_and_the_rules(promtool: str) -> None:
    told = run(promtool, "check", "config", "--lint-fatal", "prometheus.yml", cwd=PROMETHEUS)
    assert "1 rule files found" in told


def test_prometheus_reads_the_settings_with_tls(promtool: str, tmp_path: Path) -> None:
    """It looks for the files that they name."""
    shutil.copy(DEPLOY / "compose" / "prometheus-tls.yml", tmp_path)
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    (tmp_path / "ca.pem").touch()
    run(promtool, "check", "config", "--lint-fatal", "prometheus-tls.yml", cwd=tmp_path)


def test_each_alert_fires_when_it_should_and_not_before(promtool: str) -> None:
    run(promtool, "test", "rules", "alerts_test.yml", cwd=PROMETHEUS)


def test_prometheus_reads_every_query_of_the_dashboards(promtool: str, tmp_path: Path) -> None:
    """As rules: promtool reads no dashboards."""
    rules = []
    for given in load_tool("dashboards").DASHBOARDS:
        for _, panels in given.rows:
            for panel in panels:
                for number, query in enumerate(panel.queries):
                    name = f"{given.uid}: {panel.title}: {number}".replace("-", "_")
                    expression = query.expression.replace("$__rate_interval", "5m")
                    rules.append({"alert": name, "expr": expression})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", str(file))


# Containers ---------------------------------------------------------------------------------
MANIFESTS = DEPLOY / "kubernetes" / "vq.yaml"
CHART = DEPLOY / "helm" / "vq"
DRAIN = CHART / "files" / "drain.py"


def installed(name: str) -> str:
    """Return a program that the set-up for tests installs, if there is one for this machine."""
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        unavailable(f"{name} is missing (pip install {name})")
    return str(found)


def test_the_linter_of_images_finds_nothing() -> None:
    run(installed("hadolint"), "--failure-threshold", "style", "Dockerfile")


def test_compose_reads_the_file() -> None:
    """By its schema, which the checker has brought with it."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    run(installed("check-jsonschema"), *schema, "compose/compose.yml", "compose/secure.yml")


@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_kubernetes_takes_the_manifests(version: str) -> None:
    """The oldest and the newest version that the chart says it is for."""
    run(installed("kubernetes-validate"), "--strict", "-k", version, str(MANIFESTS))


def test_the_manifests_are_what_the_chart_makes() -> None:
    """Where helm is; it is no package of Debian or PyPI."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is missing")
    run(helm, "lint", "--strict", str(CHART))
    options = ("--namespace", "vq", "--kube-version", "1.30.0")
    assert run(helm, "template", "vq", str(CHART), *options) == MANIFESTS.read_text(), (
        f"run: helm template vq deploy/helm/vq {' '.join(options)} > deploy/kubernetes/vq.yaml"
    )


def test_the_chart_makes_manifests_with_tls_users_and_rules(tmp_path: Path) -> None:
    """Where helm is. Nothing says that it takes plain text, and each Secret is mounted or read."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is missing")
    security = {
        "tls": {"secret": "a-tls", "httpsSecret": "a-https", "clientCertificates": "optional"},
        "authentication": "required",
        "authorization": "enforced",
        "superUsers": ["ops", "sre"],
        "userSecret": "a-user",
        "zookeeperAuthSecret": "a-auth",
        "zookeeperTlsSecret": "a-zookeeper",
    }
    values, made = tmp_path / "values.yaml", tmp_path / "made.yaml"
    values.write_text(yaml.safe_dump({"security": security, "serviceMonitor": {"enabled": True}}))
    run(helm, "lint", "--strict", str(CHART), "--values", str(values))
    options = ("--kube-version", "1.30.0", "--values", str(values))
    text = run(helm, "template", "vq", str(CHART), *options)
    made.write_text(text)
    run(installed("kubernetes-validate"), "-k", "1.30", str(made))
    assert "VQ_PLAINTEXT" not in text
    for name in ("a-tls", "a-https", "a-user", "a-auth", "a-zookeeper"):
        assert name in text
    assert '{name: VQ_BROKER_SUPER_USERS, value: "ops,sre"}' in text
    assert text.count("scheme: HTTPS") == 2 * (2 + 3)
    assert text.count("scheme: https") == 3


def test_the_chart_and_the_manifests_have_the_same_script() -> None:
    maps = [each for each in yaml.safe_load_all(MANIFESTS.read_text()) if "data" in each]
    assert [each["data"]["drain.py"].strip() for each in maps] == [DRAIN.read_text().strip()]


def test_systemd_reads_every_unit(tmp_path: Path) -> None:
    verify = program("systemd-analyze", "systemd")
    for unit in sorted(DEPLOY.glob("*.service")):
        name = unit.name.replace("@.", "@b1.")
        text = re.sub(r"/opt/vq/bin/\w+", "/bin/true", unit.read_text())  # it must exist
        (tmp_path / name).write_text(text)
        assert run(verify, "verify", "--man=no", str(tmp_path / name)) == ""


# Before a broker stops ------------------------------------------------------------------------
def drain(tmp_path: Path, *answers: str, wait_s: float = 0.0, nodes: int = 2) -> tuple[int, int]:
    """Run the script with a `vq` that gives these answers, the last one again and again.

    Returns:
        How it ended, and how often it asked.
    """
    for number, text in enumerate(answers, 1):
        (tmp_path / f"{number}").write_text(text)
    asked = tmp_path / "asked"
    vq = tmp_path / "vq"
    vq.write_text(
        f'#!/bin/sh\necho "$*" >> {asked}\n'
        f"n=$(wc -l < {asked}); [ $n -gt {len(answers)} ] && n={len(answers)}\n"
        f"cat {tmp_path}/$n\n"
    )
    vq.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VQ_BROKER_GROUP": "b1",
        "VQ_BROKER_NODE": "vq-b1-0",
        "DRAIN_SECONDS": str(wait_s),
        "GROUP_NODES": str(nodes),
    }
    done = subprocess.run(
        [sys.executable, str(DRAIN)], env=environ, timeout=PROCESSES_WAIT_S, check=False
    )
    lines = asked.read_text().splitlines() if asked.exists() else []
    assert set(lines) <= {"cluster status --json"}
    return done.returncode, len(lines)


def told(*nodes: tuple[str, str, bool]) -> str:
    rows = [{"group": g, "node": n, "in_sync": s, "address": "10.0.0.1:8123"} for g, n, s in nodes]
    gone = {"group": "b1", "node": "vq-b1-9", "in_sync": True, "address": None}
    return json.dumps([*rows, gone])


OWN = ("b1", "vq-b1-0", True)
LAGS = told(OWN, ("b1", "vq-b1-1", False), ("b2", "vq-b2-0", True))
HEIR = told(OWN, ("b1", "vq-b1-1", True))


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([HEIR], 1),
        ([told(OWN), HEIR], 2),
        ([LAGS, HEIR], 2),
        (["nonsense", HEIR], 2),
    ],
)
def test_a_stop_waits_for_a_node_to_hand_over_to(
    answers: list[str], asked: int, tmp_path: Path
) -> None:
    assert drain(tmp_path, *answers, wait_s=PROCESSES_WAIT_S) == (0, asked)


def test_a_group_of_one_node_does_not_wait(tmp_path: Path) -> None:
    assert drain(tmp_path, told(OWN), wait_s=PROCESSES_WAIT_S, nodes=1) == (0, 0)


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Neither for a copy that stays behind, nor for an answer."""
    for number, answer in enumerate((LAGS, "")):
        place = tmp_path / str(number)
        place.mkdir()
        assert drain(place, answer) == (0, 1)
