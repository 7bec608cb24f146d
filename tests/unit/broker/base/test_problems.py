"""A problem is logged once, until it is gone."""

import pytest

from vq.broker.base.problems import Problems
from vq.log_lines import get_logger


def test_a_problem_is_told_once_until_it_changes_or_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each topic for itself."""
    problems = Problems(get_logger("vq.test"), "it cannot be done, trying again")
    for about, problem in (
        ("t", "full"),
        ("t", "full"),
        ("u", "full"),
        ("t", OSError("broken")),
        ("t", ""),
        ("t", ""),
        ("t", "full"),
    ):
        problems.tell(about, problem)
    told = [each.getMessage() for each in caplog.records]
    assert [("topic=u" in each, "broken" in each) for each in told] == [
        (False, False),
        (True, False),
        (False, True),
        (False, False),
    ]
    assert all("it cannot be done, trying again" in each for each in told)


def test_a_line_names_what_its_teller_wants(caplog: pytest.LogCaptureFixture) -> None:
    problems = Problems(get_logger("vq.test"), "it cannot be removed")
    problems.tell("s3://bucket", "nobody answers", path="/data/x")
    (line,) = [each.getMessage() for each in caplog.records]
    assert "path=/data/x" in line
    assert "topic" not in line
