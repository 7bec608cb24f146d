"""The failure policy that counts for a member: that of its group's contract, as it is now.

In here: what the first member of a group makes it, what a member is told whose settings differ, and
the policy in force. Not in here: reading the contract (``group.membership``), deciding about a
message (``failures``).
"""

from dataclasses import fields
from typing import Any, Final

from vq.client.config import ConsumerConfig
from vq.coordination.tree.values.group_terms import (
    PAUSES_MAX,
    FailurePolicy,
    usual_on_failure,
)
from vq.log_lines import get_logger

logger = get_logger(__name__)
#: What a member may say of the policy, by the names of its settings and of the policy's fields.
_SAID: Final = {
    "on_failure": "on_failure",
    "max_attempts": "max_attempts",
    "retry_backoff": "retry_backoff_s",
    "retry_schedule": "retry_topic_s",
    "on_bad_record": "on_bad_record",
}


def founding_policy(config: ConsumerConfig) -> FailurePolicy:
    """Return the policy of a group that a member with these settings founds."""
    return FailurePolicy(
        **{"on_failure": usual_on_failure(config.mode, config.model), **_said(config)}
    )


def pauses_between(first_s: float, most_s: float) -> tuple[float, ...]:
    """Return pauses that double from the first one to the longest."""
    pauses: list[float] = []
    while first_s < most_s and len(pauses) < PAUSES_MAX - 1:
        pauses.append(first_s)
        first_s *= 2
    return (*pauses, most_s)


def _said(config: ConsumerConfig) -> dict[str, Any]:
    """Return what the settings say of the policy, by its fields."""
    said = {field: getattr(config, name) for name, field in _SAID.items()}
    if config.retry_backoff is not None:
        said["retry_backoff_s"] = pauses_between(*config.retry_backoff)
    return {field: value for field, value in said.items() if value is not None}


class PolicyInForce:
    """The policy that counts. The loop changes it, any thread reads it.

    Attributes:
        now: The policy; before the contract was read, what the settings say.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.now = founding_policy(config)
        self._config = config
        self._was_read = False

    def follow(self, group: FailurePolicy) -> bool:
        """Take the policy of the contract; return whether it is another one than before."""
        before, self.now = self.now, group
        is_first, self._was_read = not self._was_read, True
        if before == group and not is_first:
            return False
        differing = [
            f"{name} of the group is {_shown(getattr(group, field))}, of this member "
            f"{_shown(said[field])}"
            for name, field in _SAID.items()
            if field in (said := _said(self._config)) and said[field] != getattr(group, field)
        ]
        if differing:
            logger.warning(
                "failure policy of the group counts, not that of this member",
                group=self._config.group,
                differing="; ".join(differing),
                hint=f"vq group alter {self._config.group} changes it for all members",
            )
        if is_first:
            return before != group
        shown = [f"{each.name}={_shown(getattr(group, each.name))}" for each in fields(group)]
        logger.info(
            "failure policy of the group has changed",
            group=self._config.group,
            policy=", ".join(shown),
        )
        return True


def _shown(value: object) -> str:
    return ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)
