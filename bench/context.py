"""One run of the benchmark: where, how often, how much; what every scenario is given."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import Cluster, cluster
from bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Context:
    """One run: where, how often, and how much.

    Attributes:
        directory: Clusters and the room's files are made below it.
        rounds: How often each measurement is taken in turns with the room.
        quick: Small loads, to see that everything works; the figures are not worth keeping.
        say: Tells a person what is going on.
        samples: Where samples go when everything runs under the sampler.
    """

    directory: Path
    rounds: int
    quick: bool
    say: Callable[[str], None]
    samples: Path | None = None

    @property
    def room(self) -> str:
        """Where the room's files go."""
        return str(self.directory)

    @property
    def room_s(self) -> float:
        """How long each figure of the room is measured."""
        return 0.4 if self.quick else 1.5

    def pick(self, full: int, quick: int) -> int:
        """Return the load for this kind of run."""
        return quick if self.quick else full

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """Start a fresh cluster of one broker."""
        with cluster(self.directory, samples=self.samples) as started:
            yield started


#: What a scenario yields: the figures of one round after the other.
Rounds = Iterator[list[Figure]]
