"""docs/formats/copy.md says how the files are written."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.copies.layout import (
    CHECKPOINT_FORMAT,
    FEED_FORMAT,
    VERSION,
    FeedCopy,
    decode_checkpoint,
    encode_checkpoint,
)

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "copy.md").read_text()
EXAMPLES = [re.sub(r"\n *", "", block) for block in re.findall(r"^```\n(\{.*?)```$", PAGE, re.M | re.S)]
MEMBERS = re.findall(r"^\| (`[^|]*`) \|", PAGE, re.M)


def test_the_examples_are_what_is_written():
    feed, checkpoint = (f"{example}\n".encode() for example in EXAMPLES)
    decoded = FeedCopy.decode(feed)
    assert decoded.encode() == feed
    copy = decode_checkpoint(checkpoint, decoded.feed.feed_id, 3)
    assert encode_checkpoint(decoded.feed.feed_id, copy) == checkpoint
    segment = (Path(__file__).parents[3] / "docs" / "formats" / "segment.md").read_text()
    assert copy.segments[1].checksum[::-1].hex(" ", 1)[:11] in segment, "the end of the checksum, in its place"


def test_every_member_is_explained():
    explained = {name for cell in MEMBERS for name in re.findall(r"`(\w+)`", cell)}
    written = {name for example in EXAMPLES for name in re.findall(r'"(\w+)":', example)} - {"version", "sum"}
    assert written == explained
    assert f"`{FEED_FORMAT}`" in PAGE
    assert f"`{CHECKPOINT_FORMAT}`" in PAGE
    assert f"`version`, {VERSION}" in PAGE
