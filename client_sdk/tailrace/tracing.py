"""OpenTelemetry spans of writes, of their handling by a node, and of their way into an index.

    write (producer) ──TRACE, WRITE──> node (server) ──TRACE, BLOCK──> follower: apply (consumer), linked to the writes

A program that traces has imported ``opentelemetry.trace`` itself. So nothing here imports it, and a program without it
pays for one look into ``sys.modules`` for each block. Spans have no keys, no values and no tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tailrace._version import __version__
from tailrace.wire.messages import TRACING_MODULE, Trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

    from tailrace.errors import TailraceError
    from tailrace.model import VersionRange

T = TypeVar("T")

# As many links as the SDK keeps of a span by default; each takes about 0.5 KiB.
LINKS_MAX = 128
# The tracer of the provider that was asked last: a provider takes its time to make one.
_last: list[tuple[Any, Tracer]] = []


class Traced(Protocol):
    """Mutations with the contexts of the sampled writes among them."""

    @property
    def traces(self) -> tuple[Trace, ...]: ...
    def __len__(self) -> int: ...


def _api() -> Any:
    return sys.modules[TRACING_MODULE]


def _tracer() -> Tracer:
    provider = _api().get_tracer_provider()
    if not _last or _last[0][0] is not provider:
        _last[:] = [(provider, provider.get_tracer("tailrace", __version__))]
    return _last[0][1]


def _attributes(operation: str, kind: str, feed: str) -> dict[str, Any]:
    return {
        "messaging.system": "tailrace",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": feed,
    }


# Spans of one block


class BlockSpan:
    """The span of one block, until its answer: in the writer, or in the node."""

    __slots__ = ("_span", "trace")

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        #: The context to send; None if the span is not sampled.
        self.trace = _trace_of(context) if context.is_valid and context.trace_flags.sampled else None

    @property
    def is_needed(self) -> bool:
        """Whether anything records the span or follows it."""
        return self.trace is not None or self._span.is_recording()

    def written(self, versions: VersionRange) -> None:
        """Ends the span of a block that has its versions."""
        if versions.first_seq:
            self._span.set_attributes(
                {"tailrace.first_seq": versions.first_seq, "tailrace.last_seq": versions.last_seq}
            )
        self._span.end()

    def failed(self, error: TailraceError) -> None:
        """Ends the span of a block that has failed."""
        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(_api().StatusCode.ERROR, str(error))
        self._span.end()

    def withdrawn(self) -> None:
        """Ends the span of a block whose caller is gone."""
        self._span.add_event("withdrawn")
        self._span.end()


def begin_write(feed: str, partition: int, rows: int) -> BlockSpan | None:
    """Begins the span of a block that a client sends, in the caller's context. None: nothing records or follows it."""
    span = BlockSpan(
        _tracer().start_span(
            f"write {feed}", kind=_api().SpanKind.PRODUCER, attributes=_of_block("write", feed, partition, rows)
        )
    )
    return span if span.is_needed else None


def begin_handling(trace: Trace, feed: str, partition: int, rows: int) -> BlockSpan:
    """Begins the span of a block that a node takes, as a child of its writer's."""
    return BlockSpan(
        _tracer().start_span(
            f"WRITE {feed}",
            context=_parent(trace),
            kind=_api().SpanKind.SERVER,
            attributes=_of_block("WRITE", feed, partition, rows),
        )
    )


def _of_block(operation: str, feed: str, partition: int, rows: int) -> dict[str, Any]:
    return _attributes(operation, "send", feed) | {
        "messaging.destination.partition.id": str(partition),
        "messaging.batch.message_count": rows,
    }


# Consumers


def links(*events: Traced) -> list[Link]:
    """Returns links to the sampled writes of some events, for a span of your own.

    ``tracer.start_as_current_span("handle", links=tailrace.tracing.links(event))``

    Args:
        events: The events that the span handles.

    Returns:
        A link for each sampled write, at most 128. Empty if no write was sampled, or its context was not kept.

    Raises:
        ImportError: ``opentelemetry-api`` is not installed.
    """
    from opentelemetry import trace as _  # noqa: F401 - without a sampled write there is no other use of it

    return _links([trace for event in events for trace in event.traces])


def _links(traces: Sequence[Trace]) -> list[Link]:
    make: Callable[[SpanContext], Link] = _api().Link
    return [make(_context_of(trace)) for trace in dict.fromkeys(t.of_request() for t in traces[:LINKS_MAX])]


def applying(
    feed: str, events: Sequence[Traced], apply: Callable[[], T], passes: type[BaseException]
) -> Callable[[], T]:
    """Returns ``apply`` in a span of its own if a write of ``events`` was sampled, otherwise ``apply`` itself.

    The span is a child of the first write, so that a sampler which follows parents decides as the writer did. It has a
    link to each write. ``passes`` is an exception that is no failure of the index.
    """
    traces = [trace for event in events for trace in event.traces]
    if not traces:
        return apply
    rows = sum(map(len, events))

    def traced() -> T:
        with _tracer().start_as_current_span(
            f"apply {feed}",
            context=_parent(traces[0]),
            kind=_api().SpanKind.CONSUMER,
            links=_links(traces),
            attributes=_attributes("apply", "process", feed) | {"messaging.batch.message_count": rows},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return apply()
            except BaseException as error:
                if not isinstance(error, passes):
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(_api().StatusCode.ERROR, str(error))
                raise

    return traced


# Contexts


def _trace_of(context: SpanContext) -> Trace:
    return Trace(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags))


def _context_of(trace: Trace) -> SpanContext:
    api = _api()
    context: SpanContext = api.SpanContext(
        int.from_bytes(trace.trace_id, "big"),
        int.from_bytes(trace.span_id, "big"),
        is_remote=True,
        trace_flags=api.TraceFlags(trace.flags),
    )
    return context


def _parent(trace: Trace) -> Context:
    api = _api()
    context: Context = api.set_span_in_context(api.NonRecordingSpan(_context_of(trace)))
    return context
