"""Debian's Chromium, driven by Playwright, and a console as a process for it."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from playwright import async_api
from playwright.sync_api import Browser, sync_playwright
from support.cluster import PROCESSES_WAIT_S, VQ, ProcessCluster
from support.zookeeper import unavailable


def _program() -> str:
    """Return the path of the browser; skip without it, fail where ``.ci/run`` runs."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        reason = "chromium is missing (Debian: apt-get install chromium)"
        if os.environ.get("NEEDS_BROWSER"):
            pytest.fail(reason)
        unavailable(reason)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Provide a browser; Playwright's loop runs in this thread meanwhile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@asynccontextmanager
async def async_chromium() -> AsyncIterator[async_api.Browser]:
    """Provide a browser on the loop of the test."""
    async with async_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_program(), args=["--no-sandbox"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@contextmanager
def console_process(
    cluster: ProcessCluster, directory: Path, *flags: str, database: str = ""
) -> Iterator[str]:
    """Run ``vq console`` on a free port; provide its address without the slash at its end."""
    command = [*VQ, "console", "--port", "0", "--json", *flags]
    command += ["--database", database or f"sqlite:///{directory / 'console.db'}"]
    with (directory / "console.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=cluster.environ, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (directory / "console.log").read_text()
        yield json.loads(line)["console"].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESSES_WAIT_S) == 0
        process.stdout.close()  # type: ignore[union-attr]
