"""What lies in deploy/ is what the operator's pages show, and what the code takes and serves."""

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from vq.broker.base.config import BrokerConfig
from vq.cli.main import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))


@pytest.mark.parametrize(
    ("name", "language", "page"),
    [
        ("vq@.service", "ini", "set-up-a-broker.md"),
        ("broker.toml", "toml", "set-up-a-broker.md"),
        ("vq.toml", "toml", "deploy-with-systemd.md"),
        ("broker-tls.toml", "toml", "deploy-with-systemd.md"),
        ("helm/vq/values.yaml", "yaml", "deploy-on-kubernetes.md"),
    ],
)
def test_the_page_shows_the_file(name: str, language: str, page: str) -> None:
    """As one of its blocks, letter by letter."""
    text = (ROOT / "docs" / "howto" / page).read_text()
    file = (DEPLOY / name).read_text()
    assert f"```{language}\n{file}```\n" in text


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_leaves_a_process_little_to_do_harm_with(name: str) -> None:
    """At most 3 of 10, as `systemd-analyze security` counts; the page tells the number."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing: apt install systemd")
        pytest.skip("systemd-analyze is missing")
    unit = DEPLOY / name
    told = subprocess.run(
        [tool, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found is not None, told
    assert float(found[1]) <= 3
    if name == "vq@.service":
        text = unit.read_text()
        assert "ProcSubset" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE), "see the comment"


# What is run --------------------------------------------------------------------------------
@cache
def manifests() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "vq.yaml").read_text()))


def of_kind(*kinds: str) -> list[Any]:
    return [each for each in manifests() if each["kind"] in kinds]


def workloads() -> list[Any]:
    return of_kind("StatefulSet", "Deployment")


def containers() -> list[tuple[str, Any]]:
    return [
        (each["metadata"]["name"], container)
        for each in workloads()
        for container in each["spec"]["template"]["spec"]["containers"]
    ]


@cache
def compose(name: str = "compose") -> Any:
    return yaml.safe_load((DEPLOY / "compose" / f"{name}.yml").read_text())


def commands() -> list[tuple[str, list[str]]]:
    """Return every command line of vq in deploy/, by where it stands."""
    found = []
    for name, service in compose()["services"].items():
        if service["image"].startswith("vq:"):
            found.append((f"compose {name}", service["command"]))
    for name, service in compose("secure")["services"].items():
        if "command" in service:
            found.append((f"secure {name}", service["command"]))
    for name, container in containers():
        if container["image"].startswith("vq:"):
            found.append((f"manifest {name}", container["args"]))
    for name in UNITS:
        lines = re.findall(r"^ExecStart=/opt/vq/bin/vq (.*)$", (DEPLOY / name).read_text(), re.M)
        found += [(name, line.split()) for line in lines]
    return found


@pytest.mark.parametrize(("where", "command"), commands(), ids=[each[0] for each in commands()])
def test_vq_takes_every_command_line(where: str, command: list[str], tmp_path: Path) -> None:
    name, *options = command
    if name in {"console", "gateway"} and name not in COMMANDS:
        pytest.skip(f"this version has no vq {name}")
    assert name in COMMANDS, f"{where}: there is no command {name}"
    config = tmp_path / "vq.toml"
    config.write_text("")
    options = [str(config) if each.startswith("/etc/vq/") else each for each in options]
    context = click.Context(cli)
    found = cli.get_command(context, name)
    assert found is not None
    found.make_context(name, options, parent=context).close()


def environments() -> list[dict[str, str]]:
    """Return the variables of every broker in deploy/."""
    found = [
        service["environment"]
        for service in compose()["services"].values()
        if service.get("command") == ["broker"]
    ]
    for _, container in containers():
        if container.get("args") == ["broker"]:
            found.append({each["name"]: each.get("value", "x") for each in container["env"]})
    return found


def test_brokers_are_told_settings_that_there_are() -> None:
    known = {each.name for each in fields(BrokerConfig)}
    assert len(environments()) == 4 + 2
    for variables in environments():
        named = {
            each.removeprefix("VQ_BROKER_").lower()
            for each in variables
            if each.startswith("VQ_BROKER_")
        }
        assert {"group", "node", "data", "host", "advertised", "metrics_port"} <= named <= known


def test_the_file_of_a_cluster_without_an_engine_is_whole() -> None:
    """Three ZooKeeper servers, two groups of two nodes, each with a volume of its own."""
    services = compose()["services"]
    brokers = {n: s for n, s in services.items() if s.get("command") == ["broker"]}
    names = {
        (s["environment"]["VQ_BROKER_GROUP"], s["environment"]["VQ_BROKER_NODE"])
        for s in brokers.values()
    }
    assert names == {(group, node) for group in ("b1", "b2") for node in ("n1", "n2")}
    for name, service in brokers.items():
        assert service["environment"]["VQ_BROKER_ADVERTISED"] == f"{name}:8123"
        assert service["volumes"] == [f"{name}:/var/lib/vq"]
    assert {"zk1", "zk2", "zk3", "console", "gateway", "exporter", "prometheus", "grafana"} <= {
        *services
    }
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    targets = [t for job in scraped["scrape_configs"] for t in job["static_configs"][0]["targets"]]
    assert targets == [*(f"{name}:8124" for name in brokers), "exporter:8122", "gateway:8126"]
    jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    named = [[job["job_name"] for job in each["scrape_configs"]] for each in (scraped, jobs)]
    assert named[0] == named[1]


def test_the_file_with_tls_changes_every_process_of_the_other_one() -> None:
    """Each has the files of TLS, says that it takes no plain text, and is asked over TLS."""
    known = {each.name for each in fields(BrokerConfig)}
    plain, secure = compose()["services"], compose("secure")["services"]
    ours = {name for name, service in plain.items() if service["image"].startswith("vq:")}
    assert secure.keys() == ours | {"prometheus"}
    for name in ours:
        environment = {**plain[name]["environment"], **secure[name]["environment"]}
        assert environment["VQ_PLAINTEXT"] == "false"
        of_loopback = "http://127.0.0.1:" if name == "worker" else "https://localhost:"
        assert environment["HEALTH_URL"].startswith(of_loopback)
        assert {"VQ_TLS_CA", "VQ_TLS_CERTIFICATE", "VQ_TLS_KEY"} < environment.keys()
        named = [each for each in environment if each.startswith("VQ_BROKER_")]
        assert {each.removeprefix("VQ_BROKER_").lower() for each in named} <= known
    jobs, asked = (
        yaml.safe_load((DEPLOY / "compose" / f"{each}.yml").read_text())["scrape_configs"]
        for each in ("prometheus-tls", "prometheus")
    )
    more = {"scheme": "https", "tls_config": {"ca_file": "ca.pem"}}
    assert jobs == [{**each, **more} for each in asked]


def test_a_broker_knows_each_setting_of_the_file_with_tls() -> None:
    table = tomllib.loads((DEPLOY / "broker-tls.toml").read_text())
    known = {each.name for each in fields(BrokerConfig)}
    files = {"tls_certificate", "tls_key", "tls_ca"}
    assert files < table["broker"].keys() <= known | files


def test_what_compose_mounts_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), source
            else:
                assert source in compose()["volumes"]
        for other in service.get("depends_on", {}):
            assert other in compose()["services"]


def test_every_container_is_probed_bounded_and_without_rights() -> None:
    assert len(workloads()) == 6
    for workload in workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is False, "Services would set variables VQ_…_PORT"
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
    for name, container in containers():
        ports = {each["name"] for each in container["ports"]}
        for probe in ("readinessProbe", "livenessProbe"):
            asked = container[probe].get("httpGet") or container[probe].get("tcpSocket")
            assert asked is None or asked["port"] in ports, name
        assert container["resources"]["limits"]["memory"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_budget_and_a_service_stand_for_the_pods_of_one_workload() -> None:
    for each in of_kind("PodDisruptionBudget", "Service"):
        spec = each["spec"]
        selector = spec["selector"].get("matchLabels", spec["selector"])
        chosen = [
            workload["metadata"]["name"]
            for workload in workloads()
            if selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert chosen == [each["metadata"]["name"]], each["kind"]
    budgets = {each["metadata"]["name"] for each in of_kind("PodDisruptionBudget")}
    assert {each["metadata"]["name"] for each in of_kind("StatefulSet")} <= budgets


def test_a_stop_has_the_time_that_a_broker_takes() -> None:
    stop_s = BrokerConfig.__dataclass_fields__["stop_timeout_s"].default
    for workload in of_kind("StatefulSet"):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        if container.get("args") != ["broker"]:
            continue
        env = {each["name"]: each.get("value") for each in container["env"]}
        grace_s = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s > float(env["DRAIN_SECONDS"]) + stop_s
        group = workload["metadata"]["name"]
        assert env["VQ_BROKER_ADVERTISED"] == f"$(VQ_BROKER_NODE).{group}.vq.svc:8123"
        affinity = workload["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        assert affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == [
            "python",
            "/etc/vq/drain.py",
        ]
    for service in compose()["services"].values():
        if service.get("command") == ["broker"]:
            assert int(service["stop_grace_period"].removesuffix("s")) > stop_s


def test_the_image_is_for_nobody_in_particular() -> None:
    """Its user is a number and not root; what it is built from is all there."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE) == ["10001"]
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / each).exists() for each in source.split())
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text()
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all(f"!{each}\n" in kept for each in source.split())
