"""A client of a run that does its work in a thread of its own, step by step, until it is told."""

import random
import threading
from pathlib import Path
from typing import Final

from support.history import History

import vq

_TICK_S: Final = 0.01


class StepClient(threading.Thread):
    """See the module. A kind says in ``step`` what it does, again and again.

    Args:
        factory: Its producer is made from it.
        topic: The topic to send to.
        path: The file for all events; its name makes the values unique.
        rng: All random choices follow from it.
        config: Of the producer.
    """

    def __init__(
        self,
        factory: vq.MessageFactory,
        topic: str,
        path: Path,
        rng: random.Random,
        config: vq.ProducerConfig | None = None,
    ) -> None:
        super().__init__(name=f"client-{path.stem}")
        self.failure: BaseException | None = None
        self._topic = topic
        self._client = path.stem
        self._history = History(path)
        self._producer = factory.create_producer(config)
        self._rng = rng
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Do its work."""
        try:
            while not self._stop_asked.wait(_TICK_S):
                self.step()
        except BaseException as error:  # ``finish`` raises it
            self.failure = error

    def step(self) -> None:
        """Do what there is to do now."""
        raise NotImplementedError

    def settle(self) -> None:
        """Have everything that is not known yet have its outcome."""

    def finish(self) -> None:
        """Stop; everything that was sent has its outcome then."""
        self.stop()
        if self.failure is not None:
            raise self.failure
        self.settle()
        self._producer.close()
        self._history.close()

    def stop(self) -> None:
        """Stop what it does."""
        self._stop_asked.set()
        self.join()

    def wait_delivered(self, histories: Path) -> None:
        """Wait until what comes later has come, and return also if it does not.

        The judge says what is missing.
        """
