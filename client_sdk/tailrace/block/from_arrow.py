"""Blocks from Arrow arrays, by whole columns: no row is touched in Python, but to hash keys of differing lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.arrow_strings import is_strings, to_binary
from tailrace.block.encode import RawColumns, assemble, check_lengths, check_rows, header_of
from tailrace.block.hash_columns import hash_array
from tailrace.block.lazy import numpy_or_none, pyarrow

if TYPE_CHECKING:
    from tailrace.block.block import Block


def block_from_arrow(
    keys: Any,
    values: Any,
    *,
    partition: int,
    producer_id: int = 0,
    producer_seq: int = 0,
    hashes: Any = None,
    compress: bool = True,
    ttls: Any = None,
) -> Block:
    """Makes a block of the mutations in two Arrow arrays of one length, binary or strings; a null value deletes.

    Arrays may be sliced, chunked, dictionaries, large or views. ``hashes`` is a numpy array of u64, the keys' hashes;
    ``hash_array`` makes them without it. ``compress`` as for ``encode_block``. ``ttls`` is a numpy array of u32, the
    seconds of each put, 0 for none; those of deletions do not count. TypeError for arrays of other types;
    ValueError for a null or empty key, no rows, or different lengths; TooLarge for a key, a value, a number of rows or
    a body over its bound (header.py).
    """
    numpy = numpy_or_none()
    rows = check_rows(len(keys), len(values))
    keys, values = _binary(keys, "keys"), _binary(values, "values")
    if keys.null_count:
        raise ValueError(f"{keys.null_count} of {rows} keys are null")
    validity = None
    if values.null_count:
        present = values.is_valid().to_numpy(zero_copy_only=False)
        validity = numpy.packbits(present, bitorder="little").tobytes()
        ttls = None if ttls is None else numpy.where(present, ttls, 0).astype("<u4")
        values = values.fill_null(b"")  # a null of Arrow may hide bytes, a tombstone has none
    key_offsets, key_data = _parts(numpy, keys, "key")
    value_offsets, value_data = _parts(numpy, values, "value")
    if hashes is None:
        hashes = hash_array(keys)
    if hashes.dtype != numpy.dtype("<u8") or hashes.shape != (rows,):
        raise ValueError(f"{rows} keys came with hashes of shape {hashes.shape} and type {hashes.dtype}, not u64")
    least, greatest = int(hashes.min()), int(hashes.max())
    seconds = None if ttls is None or not ttls.any() else ttls.tobytes()
    columns = RawColumns(hashes.tobytes(), key_offsets, key_data, validity, value_offsets, value_data, seconds)
    header = header_of(rows, partition, producer_id, producer_seq, least, greatest)
    return assemble(header, columns, compress=compress)


def _binary(array: Any, what: str) -> Any:
    """Returns the array as one of type binary, cast if necessary, and without a copy if possible."""
    pa = pyarrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array):
        raise TypeError(f"the {what} are a {type(array).__name__}, they must be a pyarrow.Array")
    if not is_strings(array.type):
        raise TypeError(f"the {what} are of Arrow type {array.type}, they must be binary or string")
    return to_binary(array)


def _parts(numpy: Any, array: Any, what: str) -> tuple[bytes, memoryview]:
    """Offsets from 0 and the data of a binary array that may be a slice. ValueError, TooLarge for lengths."""
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = numpy.frombuffer(offsets_buffer, "<i4", len(array) + 1, 4 * array.offset)
    lengths = offsets[1:] - offsets[:-1]
    check_lengths(what, int(lengths.min()), int(lengths.max()))
    first, last = int(offsets[0]), int(offsets[-1])
    data = memoryview(b"") if data_buffer is None else memoryview(data_buffer)[first:last]
    return (offsets if first == 0 else offsets - offsets[0]).tobytes(), data
