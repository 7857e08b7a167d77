"""Server-sent events as bytes."""

from tailrace_server.serving.web.sse import HEARTBEAT, encode_event, encode_goodbye, encode_retry


def test_an_event_has_a_name_and_one_line_of_data():
    assert encode_event("mutations", '{"a":"ä"}') == 'event: mutations\ndata: {"a":"ä"}\n\n'.encode()
    assert encode_event("positions", "{}", "trp1.x") == b"event: positions\nid: trp1.x\ndata: {}\n\n"


def test_what_is_no_event():
    assert HEARTBEAT == b":\n\n"
    assert encode_goodbye("the node is stopping") == b": the node is stopping\n\n"
    assert encode_retry(2000) == b"retry: 2000\n\n"
