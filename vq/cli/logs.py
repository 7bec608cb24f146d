"""Log lines of a command: what others sent is in them, and a person reads them."""

import logging

from vq.cli.text import SafeFormatter


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Send log lines of the library to standard error, short ones for a person."""
    logging.basicConfig(level=level, force=True)
    use_safe_lines("%(levelname)s %(name)s: %(message)s")


def use_safe_lines(form: str) -> None:
    """Have the root's handlers write lines of this form, in which control characters are shown."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(SafeFormatter(form))
