"""Waiting for a condition; see ``vq.testing.waiting``."""

from vq.testing.waiting import PROCESSES_WAIT_S as PROCESSES_WAIT_S
from vq.testing.waiting import WAIT_S as WAIT_S
from vq.testing.waiting import block_until as block_until
from vq.testing.waiting import until as until
from vq.testing.waiting import until_true as until_true
