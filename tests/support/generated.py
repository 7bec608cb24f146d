"""How requests are made of an OpenAPI description: by hypothesis, and the same ones every time."""

import hypothesis


def generated_by(examples: int, *, anew: bool) -> hypothesis.settings:
    """Return the settings of a run that only makes inputs; ``anew``: other ones each time."""
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not anew,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
