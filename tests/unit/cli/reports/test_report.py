"""``vq report``: options, and what is said without Spark, without Java or when a job fails."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from vq.cli.main import run
from vq.cli.reports import report
from vq.cli.reports.report import ReportFiles, SparkFailed, SparkMissing
from vq.extras import install_command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--conf", "spark.driver.memory"], "is not a setting of Spark"),
        (["--conf", "driver.memory=1g"], "is not a setting of Spark"),
        (["--no-count", "--warn-messages", "5"], "leave out --no-count"),
        (["--stalled-after", "0"], "not in the range"),
        (["--warn-bytes", "lots"], "--warn-bytes"),
        (["--zookeeper-tasks", "65"], "not in the range"),
        (["--broker-requests", "0"], "not in the range"),
        (["--top", "1001"], "not in the range"),
        (["--out", ""], "names no directory"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_read(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "lag", *options]) == 2
    assert said in capsys.readouterr().err


def test_hours_that_no_topic_can_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "capacity", "--retention-hours", str(2**31 + 1)]) == 2
    assert "not in the range" in capsys.readouterr().err


def test_without_spark_the_error_has_the_line_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_vq.session", None)
    with pytest.raises(SparkMissing, match="not installed") as caught:
        report.start_spark("x", master="local[1]", conf={})
    assert install_command("spark") in caught.value.hint


def test_without_zookeeper_no_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is that of every command: the address, and what to do."""
    monkeypatch.setattr(report, "start_spark", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setenv("VQ_CLIENT_START_TIMEOUT_S", "0.2")
    assert run(["report", "lag", "--zookeeper", "127.0.0.1:1"]) == 1
    assert "no session with ZooKeeper at 127.0.0.1:1" in capsys.readouterr().err


def test_a_failed_job_is_told_by_what_a_worker_raised() -> None:
    """A module that the executors lack: Spark's first line says only that something was raised."""
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkException

    said = (
        "An exception was thrown from the Python worker: Traceback (most recent call last):\n"
        '  File "/x/worker.py", line 3, in main\n    func = read()\n'
        "           ^^^^^^\nModuleNotFoundError: No module named 'pyspark_vq'\n SQLSTATE: 38000\n"
        "\tat org.apache.spark.x(Y.scala:1)\nCaused by: java.io.IOException: pipe closed"
    )
    lacking = "named 'pyspark_vq'; the executors lack it: docs/howto"
    with pytest.raises(SparkFailed, match=lacking), report.told_failures():
        raise PySparkException(said)
    with pytest.raises(SparkFailed, match=r"failed: KeyError: 'b1'\n"), report.told_failures():
        raise PySparkException(
            said.replace("ModuleNotFoundError: No module named", "KeyError:").replace(
                "'pyspark_vq'", "'b1'"
            )
        )


def test_a_failed_job_is_told_by_the_error_of_vq_in_it() -> None:
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkException

    said = "Job aborted\n\tat org.apache\n  vq.errors.CoordinationError: no session\n\tat java.x"
    with pytest.raises(SparkFailed) as caught, report.told_failures():
        raise PySparkException(said)
    assert str(caught.value) == "a job of Spark failed: vq.errors.CoordinationError: no session"
    with pytest.raises(SparkFailed) as caught, report.told_failures():
        raise PySparkException("Path does not exist\n at somewhere")
    assert str(caught.value) == "a job of Spark failed: Path does not exist"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o1.parquet.\n: org.x.SparkException: Job aborted\n"
            "\tat a.b\nDriver stacktrace:\nCaused by: a.B: task failed\n\tat c.d\n"
            "Caused by: java.io.IOException: Mkdirs failed to create file:/x\n\t... 1 more",
            "java.io.IOException: Mkdirs failed to create file:/x",
        ),
        ("An error occurred while calling o1.x.\n: java.lang.Y: why\n\tat a.b", "java.lang.Y: why"),
    ],
)
def test_a_failed_job_without_an_error_of_vq_is_told_by_the_cause_in_java(
    said: str, told: str
) -> None:
    """Its first line names only the call."""
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkException

    with pytest.raises(SparkFailed) as caught, report.told_failures():
        raise PySparkException(said)
    assert str(caught.value) == f"a job of Spark failed: {told}"


def test_an_interrupt_of_a_report_ends_it_without_a_page_of_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's own handler would call Java within a call to Java."""

    class Session:
        @staticmethod
        def session(*_: Any, **__: Any) -> None:
            signal.signal(signal.SIGINT, lambda *_: pytest.fail("Spark's own handler"))

        @staticmethod
        def submitted() -> bool:
            return False

    monkeypatch.setitem(sys.modules, "pyspark_vq.session", Session)
    before, disabled = signal.getsignal(signal.SIGINT), logging.root.manager.disable
    try:
        report.start_spark("x", master="local[1]", conf={})
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        logging.getLogger().error("Exception while sending command.")
        assert not caplog.records
    finally:
        signal.signal(signal.SIGINT, before)
        logging.disable(disabled)


@pytest.mark.parametrize(("skew", "shown"), [(1.020295723035133, 1.02), (None, None)])
def test_the_table_of_lag_shows_a_short_skew(skew: float | None, shown: float | None) -> None:
    assert report.rolled_cells(rolled(skew=skew)) == rolled(skew=shown)


def rolled(**values: float | str | None) -> dict[str, Any]:
    known = {"lag_bytes": 600, "lag_messages": 6, "unknown_lags": 0, "unknown_messages": 0}
    lags = {**known, "lag_seconds": 1.5, "lag_is_upper_bound": False}
    return {"name": "a", "skew": None, **lags, **values}


def test_the_table_of_lag_shows_a_sum_that_lacks_something_as_a_bound() -> None:
    found = report.rolled_cells(rolled(unknown_lags=1, unknown_messages=2))
    assert (found["lag_bytes"], found["lag_messages"]) == (">= 600", ">= 6")
    messages = report.rolled_cells(rolled(unknown_messages=1, lag_messages=None))
    assert (messages["lag_bytes"], messages["lag_messages"]) == (600, None)


def test_the_table_of_lag_shows_a_sum_with_a_group_that_filters_as_an_upper_bound() -> None:
    found = report.rolled_cells(rolled(lag_is_upper_bound=True, unknown_messages=1))
    assert (found["lag_bytes"], found["lag_seconds"]) == ("<= 600", "<= 1.5")
    assert found["lag_messages"] == ">= 6"  # what is unknown may be more than what it leaves out


def test_the_places_of_files_are_texts_in_json() -> None:
    files = ReportFiles(out="hdfs:///x", csv=Path("a.csv"), html=None)
    assert files.written() == {"out": "hdfs:///x", "csv": "a.csv", "html": None}


def test_what_spark_says_when_it_starts_goes_into_its_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And not between the lines of the command."""

    class Session:
        @staticmethod
        def session(*_: Any, **__: Any) -> None:
            import os

            os.write(2, b"could not bind\n")
            raise RuntimeError("gateway exited")

        @staticmethod
        def submitted() -> bool:
            return False

    monkeypatch.setitem(sys.modules, "pyspark_vq.session", Session)
    with pytest.raises(SparkFailed, match=r"gateway exited\ncould not bind"):
        report.start_spark("x", master="local[1]", conf={})
    assert capfd.readouterr().err == ""
