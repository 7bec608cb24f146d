"""Tracing with OpenTelemetry: a span for each send and for each message that is handled.

    producer ── span "send orders", kind PRODUCER ── headers traceparent, tracestate ─┐
    consumer ── span "process orders", kind CONSUMER, with a link to that one ◀───────┘

The extra ``vq[opentelemetry]`` installs the API of OpenTelemetry; the application sets up an SDK.
Without one, no span is recorded and messages stay as they are. Attributes have the names of
OpenTelemetry's semantic conventions for messaging; names that begin with ``vq.`` are vq's own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from vq.extras import install_command

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"vq.opentelemetry needs the package {missing.name}: {install_command('opentelemetry')}",
        name=missing.name,
    ) from missing

from vq.client.producer.interceptors import ProducerInterceptor
from vq.errors import OutcomeUnknown, VqError
from vq.model import Message, SendResult
from vq.version import __version__

__all__ = ["TracingInterceptor", "context_of", "process_span", "traced"]

_W3C = TraceContextTextMapPropagator()


class _Headers(dict[str, str]):
    """The headers of a traced message; they carry its span to ``after_send``."""

    span: Span


class TracingInterceptor(ProducerInterceptor):
    """Makes a span of each send and puts its context into the message's headers.

    The span begins in ``before_send`` as a child of the current span, and ends with the outcome.
    ``vq.outcome`` is ``stored``, ``refused`` or ``unknown``. Only a refused message has the status
    "error"; ``error.type`` is the class of the error of a refused or unknown one.

    Args:
        tracer_provider: None: the global one.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("vq", __version__, tracer_provider)

    def before_send(self, message: Message) -> Message:
        """Begin the span; add ``traceparent`` and, if there is one, ``tracestate``."""
        given: object = message.headers
        if not isinstance(given, Mapping | None):
            return message  # it is refused after all hooks, with an error that says why
        headers = _Headers(given or {})  # before the span, which would not end if this raised
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes(message, "send"),
        )
        headers.span = span
        if span.get_span_context().is_valid:
            for name in _W3C.fields:  # a received message has those of its former send
                headers.pop(name, None)
        _W3C.inject(headers, trace.set_span_in_context(span))
        if not headers:
            return message  # there is no SDK
        return message._replace(headers=headers)

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        """End the span."""
        if not isinstance(message.headers, _Headers):
            return
        span = message.headers.span
        if result is not None:
            span.set_attribute("messaging.destination.partition.id", str(result.partition))
            span.set_attribute("messaging.message.id", str(result.id))
            span.set_attribute("vq.offset", result.offset)
            span.set_attribute("vq.outcome", "stored")
        if error is not None:
            unknown = isinstance(error, OutcomeUnknown)
            span.set_attribute("vq.outcome", "unknown" if unknown else "refused")
            span.set_attribute("error.type", type(error).__name__)
            if not unknown:
                span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()


def context_of(message: Message) -> Context:
    """Return the context that the sender put into a message's headers; empty without one."""
    return _W3C.extract(message.headers or {}, Context())


@contextmanager
def process_span(
    message: Message, *, group: str | None = None, tracer_provider: TracerProvider | None = None
) -> Iterator[Span]:
    """Make a span of the block that handles a received message; it is the current span there.

    It is linked to the sender's span and is not its child: handling a message may take place long
    after the send. If the block raises, the span has the status "error".

    Args:
        message: A received message.
        group: The consumer group, for the span's attributes.
        tracer_provider: None: the global one.
    """
    sender = trace.get_current_span(context_of(message)).get_span_context()
    attributes = {
        **_attributes(message, "process"),
        "messaging.destination.partition.id": str(message.partition),
        "messaging.message.id": str(message.id),
        "vq.offset": message.offset,
    }
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    tracer = trace.get_tracer("vq", __version__, tracer_provider)
    with tracer.start_as_current_span(
        f"process {message.topic}",
        kind=SpanKind.CONSUMER,
        links=[Link(sender)] if sender.is_valid else [],
        attributes=attributes,
    ) as span:
        yield span


def traced(
    listener: Callable[[Message], object],
    *,
    group: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Callable[[Message], None]:
    """Return a listener that calls ``listener`` inside a span; see ``process_span``."""

    def listen(message: Message) -> None:
        with process_span(message, group=group, tracer_provider=tracer_provider):
            listener(message)

    return listen


def _attributes(message: Message, operation: str) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.system": "vq",
        "messaging.destination.name": message.topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if isinstance(message.content, bytes):
        found["messaging.message.body.size"] = len(message.content)
    return found
