"""Problems of work that is tried again and again: each is logged once, until it is gone."""

from typing import Any

from vq.log_lines import Logger


class Problems:
    """The problems of one kind of work.

    Args:
        logger: Of the work.
        text: What cannot be done; it ends the line before the fields.
    """

    def __init__(self, logger: Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._told: dict[str, str] = {}

    def tell(self, about: str, problem: object, **fields: Any) -> None:
        """Log a problem unless it is the one told last; "": there is none any more.

        Args:
            about: The topic, or the place, that has it.
            problem: An error, or its text.
            fields: Of the line; without any, it names ``about`` as the topic.
        """
        text = str(problem)
        if text and text != self._told.get(about):
            self._logger.warning(self._text, **(fields or {"topic": about}), error=problem)
        if text:
            self._told[about] = text
        else:
            self._told.pop(about, None)

    def clear(self) -> None:
        """Forget all problems: they are gone."""
        self._told.clear()
