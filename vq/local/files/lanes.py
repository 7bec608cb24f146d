"""The lanes of a local queue as the files have them: a log each, and one of notes."""

from typing import Final

from vq.local.items import LATER, PRIORITIES

#: The names of the logs, by lane.
LOGS: Final = (*(f"lane-{priority}" for priority in range(PRIORITIES)), "later", "notes")
#: The log of completions counts as a lane.
NOTES: Final = LATER + 1
ALL_LANES: Final = range(NOTES + 1)
