"""What lies in deploy/, as the programs see it that read it: promtool, linters of containers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.tool import load_tool
from support.waiting import PROCESSES_WAIT_S
from support.zookeeper import unavailable

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
