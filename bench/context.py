"""One run of the benchmark: its directory, its rounds and its loads, for every scenario."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import vq
from bench.cluster import Cluster, cluster
from bench.figures import Figure


@dataclass(frozen=True, slots=True)
class Context:
    """One run of the benchmark.

    Attributes:
        directory: Clusters and the files of the baseline are made below it.
        rounds: How often each measurement runs, in turns with the baseline.
        quick: Small loads, to check that everything runs; the figures are meaningless.
        say: Prints the progress.
        samples: The directory of samples if everything runs under the sampler.
    """

    directory: Path
    rounds: int
    quick: bool
    say: Callable[[str], None]
    samples: Path | None = None

    @property
    def scratch(self) -> str:
        """The directory of the baseline's files."""
        return str(self.directory)

    @property
    def baseline_s(self) -> float:
        """The duration of each measurement of the baseline."""
        return 0.4 if self.quick else 1.5

    def pick(self, full: int, quick: int) -> int:
        """Return the load for this kind of run."""
        return quick if self.quick else full

    @contextlib.contextmanager
    def cluster(
        self, nodes: int = 1, groups: int = 1, *, tls: vq.Tls | None = None
    ) -> Iterator[Cluster]:
        """Start a fresh cluster; ``nodes`` are those of its first broker group."""
        with cluster(
            self.directory, samples=self.samples, nodes=nodes, groups=groups, tls=tls
        ) as started:
            yield started


#: The rounds of a scenario, each a list of figures.
Rounds = Iterator[list[Figure]]
