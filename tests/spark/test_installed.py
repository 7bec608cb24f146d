"""A worker compares its vq with the driver's, which travels with every task."""

import logging
import pickle
from dataclasses import replace

import pytest

from pyspark_vq import connection
from pyspark_vq.connection import factory_of
from pyspark_vq.installed import HERE, Installed
from pyspark_vq.options import Connect
from vq import MessageFactoryConfig
from vq.errors import InvalidState

CONNECT = Connect(MessageFactoryConfig(zookeeper="z:1", cluster="c"))
COMPILED = Installed("1.4.2", compiled=True)


def test_what_the_driver_has_travels_with_the_place_of_the_cluster() -> None:
    sent = replace(CONNECT, driver=Installed("7.1.0", compiled=True))
    assert pickle.loads(pickle.dumps(sent)).driver == Installed("7.1.0", compiled=True)
    assert CONNECT.driver == HERE
    assert sent == CONNECT  # it is the same cluster, so it has one client


@pytest.mark.parametrize("version", ["1.5.0", "2.4.2", "1.5", "1.14.2"])
def test_a_worker_of_another_series_refuses_and_names_both_versions(version: str) -> None:
    with pytest.raises(InvalidState) as raised:
        Installed(version, compiled=True).troubles(COMPILED)
    assert str(raised.value) == f"this worker has vq {version}, the driver 1.4.2"
    assert "same version" in raised.value.hint


def test_a_worker_of_the_same_series_goes_on_and_tells_both_versions() -> None:
    (told,) = Installed("1.4.3", compiled=True).troubles(COMPILED)
    assert "1.4.3" in told
    assert "1.4.2" in told


def test_only_a_worker_that_is_slower_than_its_driver_tells_of_loops() -> None:
    (told,) = Installed("1.4.2", compiled=False).troubles(COMPILED)
    assert "--archives" in told
    assert COMPILED.troubles(COMPILED) == []
    assert COMPILED.troubles(Installed("1.4.2", compiled=False)) == []
    assert Installed("1.4.2", compiled=False).troubles(Installed("1.4.2", compiled=False)) == []


def test_a_task_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(InvalidState):
        factory_of(replace(CONNECT, driver=Installed("0.0.9", compiled=True)))


def test_a_warning_comes_once_in_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "HERE", replace(HERE, compiled=False))
    monkeypatch.setattr(connection, "_told", set())
    monkeypatch.setattr(connection, "factories", {CONNECT: object()})
    with caplog.at_level(logging.WARNING, "pyspark_vq"):
        for _ in range(3):
            factory_of(replace(CONNECT, driver=replace(HERE, compiled=True)))
    (record,) = caplog.records
    assert "not compiled" in record.getMessage()
