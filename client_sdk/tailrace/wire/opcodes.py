"""The kinds of frames. docs/protocol/messages has a page for each."""

from __future__ import annotations

import enum


class Opcode(enum.IntEnum):
    """The kind of a frame. A number is never used again for another kind."""

    # Either way
    HELLO = 0x01
    HELLO_OK = 0x02
    NOOP = 0x03
    ERROR = 0x04
    TRACE = 0x05  # before a WRITE, and before a BLOCK
    # Metadata: JSON, answered by RESULT or ERROR
    RESULT = 0x10
    CREATE_FEED = 0x11
    LIST_FEEDS = 0x12
    DROP_FEED = 0x13
    PARTITIONS = 0x14
    STATUS = 0x15
    EXPLAIN_RESUME = 0x16
    SET_FEED = 0x17
    CREATE_TOKEN = 0x18
    LIST_TOKENS = 0x19
    REVOKE_TOKEN = 0x1A
    PROGRESS = 0x1B
    # Writes and reads: binary
    WRITE = 0x20
    WRITTEN = 0x21
    GET = 0x22
    GOT = 0x23
    # Publishing exactly once; PUBLISH and its answer are JSON
    STAGE_BLOCK = 0x24
    STAGED = 0x25
    STAGE_SEAL = 0x26
    PUBLISH = 0x27
    SINKS = 0x28  # between nodes: on the streams of a replica
    # Between the nodes of a set: copies of stages; STAGE_COPIES is JSON, answered by RESULT or ERROR
    STAGE_COPIES = 0x29
    STAGE_FETCH = 0x2A
    STAGE_DATA = 0x2B
    # Streams
    STREAM_REQUEST = 0x30
    STREAM_OK = 0x31
    ROLLBACK = 0x32
    STREAM_CLOSE = 0x33
    STREAM_END = 0x34
    SNAPSHOT_START = 0x35
    BLOCK = 0x36
    SNAPSHOT_END = 0x37
    SEQ_ADVANCED = 0x38
    ROUND_COMPLETE = 0x39
    CREDIT = 0x3A
    BARRIER = 0x3B
    BARRIER_REACHED = 0x3C
    BARRIER_LOST = 0x3D
    # Between nodes: on the streams of a replica
    REPLICA_ACK = 0x40
    LEADER_SEQS = 0x41
    PRODUCERS = 0x42
    LEADER_CHECK = 0x43
    LEADER_CONFIRM = 0x44
    # Between nodes, and from an operator: JSON, answered by RESULT or ERROR
    MEMBER = 0x45
    PROMISE = 0x46
    PROMOTE = 0x47
    HANDOVER = 0x48
    TAKE_OVER = 0x49
    ACCEPTED_SEQS = 0x4A
    MEMBER_CHANGE = 0x4B
    # Segments as files; SEGMENT_CHECKPOINT and SEGMENT_RELEASE are JSON, answered by RESULT or ERROR
    SEGMENT_CHECKPOINT = 0x50
    SEGMENT_FETCH = 0x51
    SEGMENT_DATA = 0x52
    SEGMENT_RELEASE = 0x53
    # Between nodes: segments on the streams of a replica
    SEGMENT_OFFER = 0x54
    SEGMENT_ACCEPT = 0x55
    SEGMENT_DECLINE = 0x56
    SEGMENT_TRANSIT = 0x57
    SEGMENT_ACK = 0x58
    # Consumers with a name, and groups: JSON, answered by RESULT or ERROR; CONSUMER_CHANGE is a node's
    CONSUMER_JOIN = 0x60
    CONSUMER_COMMIT = 0x61
    CONSUMER_CHANGE = 0x62
    CONSUMER_RENEW = 0x63
    CONSUMER_RELEASE = 0x64
    CONSUMER_STATUS = 0x65
    CONSUMER_RESET = 0x66
