"""APScheduler by the clock of the machine."""

import asyncio
import threading

from vq.broker.base.scheduler import ScheduledAlarm
from vq.clock import SystemClock
from vq.testing.waiting import until


async def test_it_rings_on_the_thread_of_the_loop() -> None:
    alarm, threads = ScheduledAlarm(SystemClock()), list[threading.Thread]()
    alarm.set("a", 0.01, lambda: threads.append(threading.current_thread()))
    await until(lambda: threads)
    assert threads == [threading.current_thread()]
    alarm.close()
    await asyncio.sleep(0)
