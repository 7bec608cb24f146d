"""``vq report`` with all its commands."""

from vq.cli.report import report
from vq.cli.report_audit import audit
from vq.cli.report_capacity import capacity

__all__ = ["report"]

report.add_command(capacity)
report.add_command(audit)
