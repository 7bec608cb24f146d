"""Reports of Spark in the console: who has them made, what bounds them, and how they are read.

A program stands for ``vq report``: it prints what that prints.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.console import PASSWORD, Browser, RunningConsole, running

from pyspark_vq.reports.past import read_shares
from vq.cli.reports import report_schemas
from vq.console.accounts.accounts import AccountRole, add_account
from vq.console.acts import reports as acts
from vq.console.clusters.history import store_minute
from vq.console.clusters.measured import DISK_USED
from vq.console.pages import reports as pages
from vq.testing.waiting import until

_MINUTE_S = int(time.time()) // 60 * 60 - 600
MOVE = {"topic": "t", "partition": 0, "from": "b1", "to": "b2", "reason": "even", "at_offset": None}
CAPACITY: dict[str, Any] = {
    "snapshot": "s-1",
    "disks": [{"group": "b1", "node": "<b>n1</b>", "verdict": "full", "bytes_used": 10}],
    "topics": [{"topic": "t", "partitions": 4, "bytes": 2048}],
    "plan": {"done": False, "moves": [MOVE]},
    "silent": [{"group": "b2", "node": "n1", "error": "refused"}],
}


@pytest.fixture
async def guarded(cluster, database):
    """A console with an account of each role."""
    for role in AccountRole:
        await database.run(lambda each, role=role: add_account(each, f"a-{role}", role, PASSWORD))
    async with running(cluster, database, reports="/nowhere/kept") as made:
        yield made


def _program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> Path:
    """Have reports made by a program; return the file with the arguments that it got."""
    told = tmp_path / "told"
    script = tmp_path / "program.py"
    script.write_text(
        "import json, os, sys, time\n"
        "given = open(sys.argv[-1]).readlines() if '--history' in sys.argv else []\n"
        f"told = open({str(told)!r}, 'w')\n"
        "told.write(json.dumps([sys.argv[1:], sorted(os.environ), given]))\n"
        f"told.close()\n{text}\n"
    )
    monkeypatch.setattr(acts, "PROGRAM", [sys.executable, "-S", str(script)])
    return told


def _printing(document: Any) -> str:
    return f"print({json.dumps(document)!r}); sys.exit(1)"


async def _made(console: RunningConsole, browser: Browser, report: str) -> tuple[str, Any]:
    """Have a report made; return its number, and the act once it has ended."""
    answer = await browser.post("/c/test/reports", {"report": report})
    assert answer.status_code == 303, answer.text
    number = answer.headers["location"].rpartition("/")[2]
    job = console.app.console.door.jobs[int(number)]
    await until(lambda: job.task is not None and job.task.done())
    return number, job


async def test_an_operator_has_a_report_made_and_a_viewer_reads_it(
    guarded, monkeypatch, tmp_path
) -> None:
    """Tables, files, and the plan on its way to the allocation; the process gets no secret."""
    monkeypatch.setenv("VQ_CONSOLE_OIDC_CLIENT_SECRET", "s")
    told = _program(monkeypatch, tmp_path, _printing(CAPACITY))
    values = {f"{DISK_USED} b1/n1": [0.5], "bytes_in b1": [1.0]}
    await guarded.database.run(lambda each: store_minute(each, "test", _MINUTE_S, values))
    operator = await guarded.as_role(AccountRole.OPERATOR)
    assert "Capacity" in (await operator.get("/c/test/reports")).text
    number, job = await _made(guarded, operator, "capacity")
    assert job.error == ""
    arguments, environ, lines = json.loads(told.read_text())
    assert arguments[:3] == ["report", "capacity", "--json"]
    *kept, measured = arguments[-6:]
    assert kept == ["--cluster", "test", "--out", "/nowhere/kept/test/capacity", "--history"]
    assert not Path(measured).exists(), "it is of this report alone"
    assert (_MINUTE_S + 30.0, 0.5) in read_shares(lines)["b1", "n1"]
    assert "VQ_CONSOLE_OIDC_CLIENT_SECRET" not in environ
    page = (await operator.get(f"/c/test/reports/{number}")).text
    assert "&lt;b&gt;n1&lt;/b&gt;" in page
    assert "2.00 KiB" in page
    assert "b2 n1 refused" in page
    document = re.search(r'name="document" value="([^"]+)"', page)
    assert document is not None
    assert json.loads(document[1].replace("&#34;", '"'))["moves"] == [MOVE]

    viewer = await guarded.as_role(AccountRole.VIEWER)
    assert f"/c/test/reports/{number}" in (await viewer.get("/c/test/reports")).text
    page = (await viewer.get(f"/c/test/reports/{number}")).text
    assert "2.00 KiB" in page
    assert 'name="document"' not in page
    csv = await viewer.get(f"/c/test/reports/{number}?t1.export=csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert "2048" in csv.text
    assert (await viewer.get(f"/c/test/reports/{number}/file")).json() == CAPACITY
    refused = await viewer.post("/c/test/reports", {"report": "lag"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('print("{}")', "ended with code 0"),
        ('print("no JSON")', "ended with code 0"),
        (
            'sys.stderr.write(\'{"message": "no Java here", "hint": "install it"}\'); sys.exit(1)',
            "no Java here; install it",
        ),
        ("sys.stdout.write('[' * 100_000); sys.stdout.flush(); time.sleep(60)", "more than"),
        ("time.sleep(60)", "took more than"),
    ],
)
async def test_a_report_that_fails_says_why_and_leaves_no_process(
    console, monkeypatch, tmp_path, text, why
) -> None:
    """Errors, too much and too long; nothing is kept."""
    monkeypatch.setattr(acts, "REPORT_BYTES_MAX", 50_000)
    monkeypatch.setattr(acts, "REPORT_S_MAX", 1.0 if "took" in why else 20.0)
    _program(monkeypatch, tmp_path, text)
    browser = console.browser()
    await browser.get("/c/test/reports")
    _, job = await _made(console, browser, "audit")
    assert why in job.error
    assert console.site.reports.all() == []


async def test_one_report_is_made_at_a_time_and_the_last_ones_are_kept(
    console, monkeypatch, tmp_path
) -> None:
    """A second one is refused, with the number of the first."""
    told = _program(monkeypatch, tmp_path, "time.sleep(60)")
    browser = console.browser()
    await browser.get("/c/test/reports")
    await browser.post("/c/test/reports", {"report": "lag"})
    await until(told.exists)
    second = await browser.post("/c/test/reports", {"report": "lag"})
    assert second.status_code == 409
    assert "act 1 makes a report" in second.text
    job = console.app.console.door.jobs[1]
    job.task.cancel()
    await until(job.task.done)
    _program(monkeypatch, tmp_path, _printing({"snapshot": "s", "sound": False, "findings": []}))
    number, _ = await _made(console, browser, "audit")
    assert "Something is wrong" in (await browser.get(f"/c/test/reports/{number}")).text
    assert (await browser.get("/c/test/reports/1")).status_code == 400
    assert (await browser.post("/c/test/reports", {"report": "x"})).status_code == 400


async def test_without_spark_the_page_says_what_installs_it(console, monkeypatch) -> None:
    """No button is offered."""
    monkeypatch.setattr(pages, "report_needs", lambda: "pip install pyspark")
    page = (await console.browser().get("/c/test/reports")).text
    assert "pip install pyspark" in page
    assert 'name="report"' not in page


def test_each_column_is_one_of_the_report() -> None:
    """The tables show names that ``vq report --json`` prints, by its schema."""
    schemas = {
        "lag": report_schemas.LAG,
        "capacity": report_schemas.CAPACITY,
        "audit": report_schemas.AUDIT,
    }
    for kind, tables in pages.TABLES.items():
        for each in tables:
            schema: Any = schemas[kind]
            for part in each.path.split("."):
                schema = schema["properties"][part]
            assert {name for name, _, _ in each.columns} <= set(schema["items"]["properties"])
