"""What is installed in a process: the version of vq, and whether its loops are compiled.

In here: judging that of a worker against that of its driver. Not in here: where it is asked
(``connection``). Pure. The driver's travels with ``options.Connect``, which every task has.
"""

from dataclasses import dataclass
from typing import Final

from vq import __version__
from vq.columns import is_compiled
from vq.errors import InvalidState


@dataclass(frozen=True, slots=True)
class Installed:
    """What a process has.

    Attributes:
        version: Of vq.
        compiled: Whether its loops are; in Python they do the same, many times slower.
    """

    version: str
    compiled: bool

    def troubles(self, driver: "Installed") -> list[str]:
        """Return what a worker with this is to tell of itself: no more than costs time.

        Raises:
            InvalidState: The driver has another major or minor version, so what it has sent may
                mean something else here.
        """
        told = []
        if self.version != driver.version:
            which = f"this worker has vq {self.version}, the driver {driver.version}"
            if _series(self.version) != _series(driver.version):
                raise InvalidState(which, hint="have the same version of vq on all machines")
            told.append(f"{which}; have the same version on all machines")
        if driver.compiled and not self.compiled:
            told.append(
                "vq's loops are not compiled in this worker, as they are in the driver, so its "
                "tasks take several times as long; install the wheel of this platform here, or "
                "ship it by --archives: Python loads no compiled module from a zip of --py-files"
            )
        return told


def _series(version: str) -> list[str]:
    """Return major and minor of a version: what is sent does not change within one."""
    return version.split(".")[:2]


HERE: Final = Installed(__version__, is_compiled())
