"""``vq report`` with all its commands."""

from vq.cli.reports.report import report
from vq.cli.reports.report_audit import audit
from vq.cli.reports.report_capacity import capacity

report.add_command(capacity)
report.add_command(audit)
