"""Tasks of the worker of ``compose.yml``; its topic: ``vq topic create mail --partitions 4``."""

import logging

import vq


@vq.task(topic="mail")
def welcome(user: int, language: str = "en") -> None:
    """Say hello in the log."""
    logging.getLogger(__name__).info("welcome user=%d language=%s", user, language)
