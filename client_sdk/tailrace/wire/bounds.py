"""The longest body of each request. Pure.

A node refuses a longer body by the frame's header, before it reads the body. Parsing JSON takes up to 28 times its
length in memory, and 0.1 s a MiB. So each bound is the room that the members of the request can take. Answers are not
bounded here: a client asks for them, and a partition map has megabytes.
"""

from __future__ import annotations

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.errors import TooLarge
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, HELLO_BODY_BYTES_MAX, SMALL_BODY_BYTES
from tailrace.wire.messages import GET_KEYS_MAX
from tailrace.wire.opcodes import Opcode

# A failover log of 25 branches takes 2 KiB and a key prefix 8 KiB, in hex; a newer client may say more.
_STREAM_REQUEST_BYTES_MAX = 64 * 1024
# The addresses of a set: 300 characters each.
_PROMISE_BYTES_MAX = 64 * 1024
# 4,096 stages of 35 bytes, as many partitions of 5, and two names. STAGE_COPIES has such stages, too.
_PUBLISH_BYTES_MAX = 256 * 1024
# The names of 100 feeds, 100 characters each, and a key prefix of 4,096 bytes in hex.
_CREATE_TOKEN_BYTES_MAX = 32 * 1024
# The ids of 10,000 feeds, 35 bytes each.
_ACCEPTED_SEQS_BYTES_MAX = 512 * 1024

# 4,096 partitions: a number of 4 digits and a seq of 20, with 6 bytes around them.
_PROGRESS_BYTES_MAX = 128 * 1024

# 256 partitions with full failover logs of branches of their own: 25 of 36 bytes each, in base64.
_CONSUMER_COMMIT_BYTES_MAX = 384 * 1024
# 4,096 partitions with a generation of up to 19 digits, and their numbers once more.
_CONSUMER_JOIN_BYTES_MAX = 192 * 1024

# All others have SMALL_BODY_BYTES.
REQUEST_BOUNDS: dict[Opcode, int] = {
    Opcode.HELLO: HELLO_BODY_BYTES_MAX,
    Opcode.CREATE_TOKEN: _CREATE_TOKEN_BYTES_MAX,
    Opcode.EXPLAIN_RESUME: _STREAM_REQUEST_BYTES_MAX,
    Opcode.WRITE: FRAME_BODY_BYTES_MAX,
    # The fixed part, and the length and the bytes of each key.
    Opcode.GET: 24 + GET_KEYS_MAX * (4 + KEY_BYTES_MAX),
    Opcode.STAGE_BLOCK: FRAME_BODY_BYTES_MAX,
    Opcode.PUBLISH: _PUBLISH_BYTES_MAX,
    Opcode.STAGE_COPIES: _PUBLISH_BYTES_MAX,
    Opcode.STREAM_REQUEST: _STREAM_REQUEST_BYTES_MAX,
    Opcode.PROMISE: _PROMISE_BYTES_MAX,
    Opcode.PROGRESS: _PROGRESS_BYTES_MAX,
    Opcode.CONSUMER_JOIN: _CONSUMER_JOIN_BYTES_MAX,
    Opcode.CONSUMER_RESET: _CONSUMER_COMMIT_BYTES_MAX,
    Opcode.CONSUMER_RELEASE: _CONSUMER_JOIN_BYTES_MAX,
    Opcode.CONSUMER_COMMIT: _CONSUMER_COMMIT_BYTES_MAX,
    Opcode.ACCEPTED_SEQS: _ACCEPTED_SEQS_BYTES_MAX,
}


def request_bound(opcode: Opcode) -> int:
    """Returns the longest body in bytes that a node accepts in a request of this opcode."""
    return REQUEST_BOUNDS.get(opcode, SMALL_BODY_BYTES)


def check_request(frame: bytes | tuple[bytes, bytes | memoryview]) -> None:
    """Raises TooLarge for a request's frame, in one or two buffers, whose body no node accepts."""
    if isinstance(frame, bytes) and len(frame) <= FRAME_HEADER_BYTES + SMALL_BODY_BYTES:
        return  # each opcode may have that
    buffers = (frame,) if isinstance(frame, bytes) else frame
    nbytes = sum(map(len, buffers)) - FRAME_HEADER_BYTES
    opcode = Opcode(buffers[0][4])
    if nbytes > request_bound(opcode):
        raise TooLarge(f"{opcode.name} of {nbytes} bytes; a node accepts {request_bound(opcode)} at most")
