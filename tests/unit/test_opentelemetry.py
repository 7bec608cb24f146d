"""Spans of sends and of handled messages, seen by the exporter of the real SDK."""

import importlib
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from vq.client.producer.interceptors import Interceptors, ProducerInterceptor
from vq.errors import Busy, InvalidArgument, TimedOut, VqError
from vq.model import Message, SendResult
from vq.opentelemetry import TracingInterceptor, context_of, process_span, traced

PLACE = SendResult(2, 40, 99)


class Traces:
    """A tracer provider, and the spans that ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.interceptor = TracingInterceptor(self.provider)

    def send(
        self, message: Message, result: SendResult | None = PLACE, error: VqError | None = None
    ) -> Message:
        """Send and end; return the message as a consumer gets it."""
        sending = Interceptors([self.interceptor]).begin(message)
        sending(result, error)
        headers = dict(sending.message.headers or {})
        return sending.message._replace(headers=headers, partition=2, offset=40, id=99)

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


def test_a_send_is_a_span_and_its_context_is_in_the_headers() -> None:
    traces = Traces()
    with traces.provider.get_tracer("app").start_as_current_span("request") as request:
        received = traces.send(Message("orders", b"one", headers={"a": "b"}))
    span = traces.spans[0]
    assert (span.name, span.kind) == ("send orders", SpanKind.PRODUCER)
    assert span.parent.span_id == request.get_span_context().span_id
    assert received.headers is not None
    assert received.headers["a"] == "b"
    ids = f"{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert received.headers["traceparent"].startswith(f"00-{ids}-")
    assert dict(span.attributes) == {
        "messaging.system": "vq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 3,
        "messaging.destination.partition.id": "2",
        "messaging.message.id": "99",
        "vq.offset": 40,
        "vq.outcome": "stored",
    }
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (Busy("full"), "refused", StatusCode.ERROR),
        (TimedOut("no answer"), "unknown", StatusCode.UNSET),
    ],
)
def test_only_a_refusal_is_an_error(error: VqError, outcome: str, status: StatusCode) -> None:
    traces = Traces()
    traces.send(Message("t", b"x"), None, error)
    [span] = traces.spans
    assert span.attributes["vq.outcome"] == outcome
    assert span.attributes["error.type"] == type(error).__name__
    assert span.status.status_code is status


class Noting(SpanProcessor):
    """Notes the spans that begin."""

    def __init__(self, started: list[object]) -> None:
        self._started = started

    def on_start(self, span: object, parent_context: object = None) -> None:
        self._started.append(span)


class Dropping(ProducerInterceptor):
    """Takes all headers away."""

    def before_send(self, message: Message) -> Message:
        return message._replace(headers=None)


def test_a_later_interceptor_cannot_keep_a_span_open() -> None:
    traces = Traces()
    sending = Interceptors([traces.interceptor, Dropping()]).begin(Message("t", b"x"))
    sending(PLACE, None)
    assert len(traces.spans) == 1


def test_a_message_that_is_sent_again_has_nothing_of_its_former_trace() -> None:
    """Vendors' data in ``tracestate`` belong to the ``traceparent`` that they came with."""
    traces = Traces()
    former = {"traceparent": f"00-{1:032x}-{1:016x}-01", "tracestate": "vendor=1", "a": "b"}
    received = traces.send(Message("t", b"x", headers=former))
    assert received.headers is not None
    assert received.headers.keys() == {"traceparent", "a"}
    sent = trace.get_current_span(context_of(received)).get_span_context()
    assert sent.span_id == traces.spans[0].context.span_id
    assert not sent.trace_state


@pytest.mark.parametrize("headers", [5, ["ab"], [("a", "b")]], ids=repr)
def test_headers_that_are_no_mapping_are_left_to_the_producer(headers: Any) -> None:
    """The producer refuses them; a list of pairs must not become a mapping on the way."""
    traces = Traces()
    message = Message("t", b"x", headers=headers)
    assert Interceptors([traces.interceptor]).begin(message).message is message


def test_headers_that_raise_leave_no_span_open() -> None:
    class Raising(dict[str, str]):
        def __bool__(self) -> bool:
            raise LookupError

    started: list[object] = []
    traces = Traces()
    traces.provider.add_span_processor(Noting(started))
    with pytest.raises(InvalidArgument, match="LookupError"):
        traces.send(Message("t", b"x", headers=Raising()))
    assert len(started) == len(traces.spans)


def test_a_handled_message_is_a_span_with_a_link_to_its_send() -> None:
    traces = Traces()
    received = traces.send(Message("orders", b"one"))
    seen: list[Message] = []
    traced(seen.append, group="shop", tracer_provider=traces.provider)(received)
    sent, handled = traces.spans
    assert seen == [received]
    assert (handled.name, handled.kind) == ("process orders", SpanKind.CONSUMER)
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id]
    assert handled.attributes["messaging.consumer.group.name"] == "shop"
    assert handled.attributes["messaging.operation.type"] == "process"
    assert handled.attributes["messaging.message.id"] == "99"
    assert (
        trace.get_current_span(context_of(received)).get_span_context() == handled.links[0].context
    )


def test_a_message_without_context_has_a_span_without_link() -> None:
    traces = Traces()
    with process_span(Message("t", b"x"), tracer_provider=traces.provider) as span:
        assert trace.get_current_span() is span
    [handled] = traces.spans
    assert not handled.links


def test_a_listener_that_raises_has_a_span_with_its_error() -> None:
    traces = Traces()

    def listener(_: Message) -> None:
        raise LookupError("no such order")

    with pytest.raises(LookupError):
        traced(listener, tracer_provider=traces.provider)(Message("t", b"x"))
    [handled] = traces.spans
    assert handled.status.status_code is StatusCode.ERROR
    assert handled.events[0].attributes["exception.type"] == "LookupError"


def test_without_an_sdk_messages_stay_as_they_are() -> None:
    message = Message("t", b"x")
    sending = Interceptors([TracingInterceptor(trace.NoOpTracerProvider())]).begin(message)
    assert sending.message is message
    sending(PLACE, None)


def test_without_the_extra_the_import_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "vq.opentelemetry")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'opentelemetry-api[<>]"):
        importlib.import_module("vq.opentelemetry")
