"""Which interpreters vq refuses to run on.

Threads of a client hand messages to each other by single operations on lists and dictionaries, in
Python and in the compiled loops. They count on the global interpreter lock for what is one step.
"""


def refusal(gil_enabled: bool) -> str | None:
    """Return why vq does not run here, and what to do; None: it runs.

    Args:
        gil_enabled: Whether threads take turns, as everywhere but in a free-threaded build.
    """
    if gil_enabled:
        return None
    return (
        "vq needs the global interpreter lock, and this Python runs without it (a free-threaded "
        "build, such as python3.13t): messages could be lost between threads. Use the standard "
        "build of the same version."
    )
