"""OpenTelemetry for one test: other tests of the process see a program that does not trace."""

import importlib
import sys

import pytest

from tailrace.wire.messages import TRACING_MODULE

loaded = {}


class Tracing:
    """A tracer provider with an exporter into memory, as the process's own."""

    def __init__(self, sampler=None):
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("a program")

    def spans(self, *names):
        """The spans that have ended, of these names, or all."""
        return [span for span in self.exporter.get_finished_spans() if not names or span.name in names]


@pytest.fixture
def use_tracing(monkeypatch):
    """Call it, with a sampler or None, to have this process trace until the test ends; ``api_only`` without an SDK."""
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    if TRACING_MODULE not in loaded:
        loaded[TRACING_MODULE] = importlib.import_module(TRACING_MODULE)
        import opentelemetry.sdk.trace.export.in_memory_span_exporter  # noqa: F401
    api = loaded[TRACING_MODULE]
    sys.modules.pop(TRACING_MODULE, None)

    def use(sampler=None):
        monkeypatch.setitem(sys.modules, TRACING_MODULE, api)
        tracing = Tracing(sampler)
        monkeypatch.setattr(api, "get_tracer_provider", lambda: tracing.provider)
        return tracing

    yield use
    monkeypatch.undo()
    sys.modules.pop(TRACING_MODULE, None)
