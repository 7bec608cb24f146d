"""Errors as a user of Spark sees them: what is wrong and what to do, without vq's own calls.

Spark shows the whole traceback of its Python worker, and an error of vq passes two dozen calls on
its way from ZooKeeper or a broker to the method that Spark has called. Its text and its hint say
what a user needs; the calls are in the worker's log at level DEBUG. Any other error is a defect,
and keeps them.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from vq.errors import VqError

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("pyspark_vq")


def untraced(method: Callable[P, R]) -> Callable[P, R]:
    """Have errors of vq leave a method, or a generator, without the calls behind them."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generator(*given: P.args, **named: P.kwargs):  # type: ignore[no-untyped-def]
            try:
                yield from method(*given, **named)
            except VqError as error:
                raise _alone(error) from None

        return generator

    @functools.wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        try:
            return method(*given, **named)
        except VqError as error:
            raise _alone(error) from None

    return call


def _alone(error: VqError) -> VqError:
    logger.debug("%s", error, exc_info=error)
    return error.with_traceback(None)
