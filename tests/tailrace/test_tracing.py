"""Spans from a writer to an index, by OpenTelemetry: which there are, how they hang together, and what is sent."""

import pytest
import trio
from tests.tailrace.tracing_fixtures import use_tracing  # noqa: F401

import tailrace
from tailrace import blocking, tracing
from tailrace.indexes import MemoryIndex
from tailrace.wire.messages import HelloOk, Trace
from tailrace.wire.opcodes import Opcode


@pytest.fixture
def requests(monkeypatch):
    """The opcodes of the requests that nodes of this process have had."""
    from tailrace_server.state.traffic import Traffic

    seen = []
    real = Traffic.request

    def noted(self, opcode):
        seen.append(opcode)
        real(self, opcode)

    monkeypatch.setattr(Traffic, "request", noted)
    return seen


def ids(span):
    return span.context.trace_id, span.context.span_id


async def test_a_write_its_handling_and_its_way_into_an_index_are_one_trace(feed, use_tracing):  # noqa: F811
    traced = use_tracing()
    async with feed.follow(MemoryIndex()) as follower:
        with traced.tracer.start_as_current_span("an order") as order:
            version = await feed.put(b"key", b"value")
        await follower.wait_for(version)
    [write], [handling], [apply] = (traced.spans(f"{name} {feed.name}") for name in ("write", "WRITE", "apply"))
    assert {span.context.trace_id for span in (write, handling, apply)} == {order.get_span_context().trace_id}
    assert write.parent.span_id == order.get_span_context().span_id
    assert handling.parent.span_id == apply.parent.span_id == write.context.span_id
    assert [ids(link) for link in apply.links] == [ids(write)]
    assert [span.kind.name for span in (write, handling, apply)] == ["PRODUCER", "SERVER", "CONSUMER"]
    assert write.attributes == {
        "messaging.system": "tailrace",
        "messaging.operation.name": "write",
        "messaging.operation.type": "send",
        "messaging.destination.name": feed.name,
        "messaging.destination.partition.id": str(version.partition),
        "messaging.batch.message_count": 1,
        "tailrace.first_seq": version.seq,
        "tailrace.last_seq": version.seq,
    }
    assert handling.attributes["tailrace.last_seq"] == version.seq


async def test_an_applied_batch_is_linked_to_each_write_and_belongs_to_the_first(feed, use_tracing):  # noqa: F811
    traced = use_tracing()
    async with feed.writer() as writer:
        for number in range(100):
            await writer.put(b"key %d" % number, b"value")
    writes = {ids(span) for span in traced.spans(f"write {feed.name}")}
    async with feed.follow(MemoryIndex()) as follower:
        await follower.barrier()
    applied = traced.spans(f"apply {feed.name}")
    assert {ids(link) for span in applied for link in span.links} == writes
    for span in applied:
        assert (span.parent.trace_id, span.parent.span_id) == ids(span.links[0])
    assert sum(span.attributes["messaging.batch.message_count"] for span in applied) == 100


async def test_a_program_makes_links_to_the_writes_of_its_events(feed, use_tracing):  # noqa: F811
    traced = use_tracing()
    await feed.put(b"key", b"value")
    async with feed.consume(until="now") as stream:
        events = [event async for event in stream if isinstance(event, tailrace.Mutations)]
    [write] = traced.spans(f"write {feed.name}")
    assert [ids(link) for link in tracing.links(*events)] == [ids(write)]
    assert [(t.first_seq, t.last_seq) for event in events for t in event.traces] == [(1, 1)]


async def test_without_a_sampled_context_nothing_is_sent(feed, use_tracing, requests):  # noqa: F811
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    traced = use_tracing(ALWAYS_OFF)
    async with feed.follow(MemoryIndex()) as follower:
        await follower.wait_for(await feed.put(b"key", b"value"))
    assert Opcode.WRITE in requests
    assert Opcode.TRACE not in requests
    assert traced.spans() == []


async def test_an_older_node_is_sent_no_context(client, feed, use_tracing, requests, monkeypatch):  # noqa: F811
    use_tracing()
    monkeypatch.setattr(HelloOk, "encode", lambda self, e=HelloOk.encode: e(self._replace(takes_traces=False)))
    async with tailrace.connect(client._core.url) as other:
        await other.feed(feed.name).put(b"key", b"value")
    assert Opcode.WRITE in requests
    assert Opcode.TRACE not in requests


async def test_a_consumer_that_does_not_trace_is_sent_no_context(feed, use_tracing, monkeypatch):  # noqa: F811
    import sys

    from tailrace.wire.messages import TRACING_MODULE

    use_tracing()
    await feed.put(b"key", b"value")
    monkeypatch.delitem(sys.modules, TRACING_MODULE)
    async with feed.consume(until="now") as stream:
        events = [event async for event in stream if isinstance(event, tailrace.Mutations)]
    assert [event.traces for event in events] == [()]


async def test_the_span_of_a_refused_write_has_its_error(feed, use_tracing):  # noqa: F811
    traced = use_tracing()
    await feed.put(b"key", b"value")
    with pytest.raises(tailrace.VersionConflict):
        await feed.put(b"key", b"another", if_absent=True)
    for name in ("write", "WRITE"):
        span = traced.spans(f"{name} {feed.name}")[-1]
        assert (span.status.status_code.name, span.attributes["error.type"]) == ("ERROR", "VersionConflict")


async def test_the_span_of_an_index_that_fails_has_its_error(feed, use_tracing):  # noqa: F811
    class Failing(MemoryIndex):
        def apply(self, mutations, checkpoint):
            if mutations:
                raise OSError("no room")
            super().apply(mutations, checkpoint)

    async def follow():
        async with feed.follow(Failing()):
            await feed.put(b"key", b"value")
            await trio.sleep_forever()

    traced = use_tracing()
    with pytest.raises(OSError, match="no room"):
        await follow()
    [span] = traced.spans(f"apply {feed.name}")
    assert (span.status.status_code.name, span.attributes["error.type"]) == ("ERROR", "OSError")


async def test_contexts_of_keys_that_a_stream_leaves_out_are_not_sent(feed, use_tracing):  # noqa: F811
    use_tracing()
    await feed.put(b"a", b"1")
    async with feed.consume(until="now", key_prefix=b"a") as stream:
        events = [event async for event in stream if isinstance(event, tailrace.Mutations)]
    assert [event.traces for event in events] == [()]


async def test_contexts_that_no_write_follows_are_dropped(raw, feed, node):
    async with raw() as connection:
        await connection.hello()
        await connection.send(*[Trace(b"t" * 16, b"s" * 8, 1).encode(id) for id in range(1, 1_000)])
        answer = await connection.ask(Opcode.LIST_FEEDS, b"{}", 2_000)
        assert answer.opcode is Opcode.RESULT
    await feed.put(b"key", b"value")
    assert not len(node.services.traces)


async def test_a_short_context_ends_the_connection(raw):
    from tailrace.wire.frames import encode_frame

    async with raw() as connection:
        await connection.hello()
        await connection.send(encode_frame(Opcode.TRACE, b"short", 1))
        assert "TRACE: 5 bytes" in str(await connection.error())


async def test_a_blocking_client_traces_in_the_context_of_its_caller(client, feed, use_tracing):  # noqa: F811
    traced = use_tracing()

    def write():
        with blocking.connect(client._core.url) as other, traced.tracer.start_as_current_span("a job"):
            other.feed(feed.name).put(b"key", b"value")
            with other.feed(feed.name).writer() as writer:
                writer.put(b"key", b"later")

    await trio.to_thread.run_sync(write)
    [job] = traced.spans("a job")
    assert [span.parent.span_id for span in traced.spans(f"write {feed.name}")] == [job.context.span_id] * 2


async def test_a_follower_sends_the_contexts_of_its_leader(members, use_tracing):  # noqa: F811
    traced = use_tracing()
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"key", b"value", level="quorum")
    async with members.client(state="follower") as reader, reader.feed("orders").follow(MemoryIndex()) as index:
        await index.wait_for(version)
    [write], [apply] = traced.spans("write orders"), traced.spans("apply orders")
    assert [ids(link) for link in apply.links] == [ids(write)]


def test_a_message_is_decoded_as_it_was_encoded():
    trace = Trace(bytes(range(16)), bytes(range(8)), 1, 5, 9)
    assert Trace.decode(memoryview(trace.encode(7))[16:]) == trace
