"""SIGTERM and SIGHUP mean what ctrl-C means, whoever handles that at the moment."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from vq.cli.base import signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals._last = int(signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_each_signal_interrupts_and_has_its_exit_code(number: signal.Signals, code: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert signals.exit_code() == code


def test_a_running_loop_is_cancelled_and_tidies_up() -> None:
    tidied = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert tidied == [True]


def test_a_command_with_a_handler_of_its_own_keeps_it() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGINT]


def test_it_ends_where_ctrl_c_is_ignored() -> None:
    """As in the background jobs of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_nohup_stays_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
