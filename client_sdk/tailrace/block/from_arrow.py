"""Blocks from Arrow arrays, by whole columns: no row is touched in Python, but to hash keys of differing lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.encode import RawColumns, assemble, check_lengths, check_rows, header_of
from tailrace.block.hash_columns import hash_array
from tailrace.block.header import BODY_BYTES_MAX
from tailrace.block.lazy import numpy_or_none, pyarrow
from tailrace.errors import TooLarge

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
) -> Block:
    """Makes a block of the mutations in two Arrow arrays of one length, binary or strings; a null value deletes.

    Arrays may be sliced, chunked, dictionaries, large or views. ``hashes`` is a numpy array of u64, the keys' hashes;
    ``hash_array`` makes them without it. ``compress`` as for ``encode_block``. TypeError for arrays of other types;
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
        values = values.fill_null(b"")  # a null of Arrow may hide bytes, a tombstone has none
    key_offsets, key_data = _parts(numpy, keys, "key")
    value_offsets, value_data = _parts(numpy, values, "value")
    if hashes is None:
        hashes = hash_array(keys)
    if hashes.dtype != numpy.dtype("<u8") or hashes.shape != (rows,):
        raise ValueError(f"{rows} keys came with hashes of shape {hashes.shape} and type {hashes.dtype}, not u64")
    least, greatest = int(hashes.min()), int(hashes.max())
    columns = RawColumns(hashes.tobytes(), key_offsets, key_data, validity, value_offsets, value_data)
    header = header_of(rows, partition, producer_id, producer_seq, least, greatest)
    return assemble(header, columns, compress=compress)


def _binary(array: Any, what: str) -> Any:
    """Returns the array as one of type binary, cast if necessary, and without a copy if possible."""
    pa = pyarrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array):
        raise TypeError(f"the {what} are a {type(array).__name__}, they must be a pyarrow.Array")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == pa.binary():
        return array
    if not any(is_kind(array.type) for is_kind in _kinds(pa)):
        raise TypeError(f"the {what} are of Arrow type {array.type}, they must be binary or string")
    try:
        return array.cast(pa.binary())
    except pa.ArrowInvalid as error:  # large arrays over 2 GiB
        raise TooLarge(f"the {what} do not fit into a block, whose body has at most {BODY_BYTES_MAX} bytes") from error


def _kinds(pa: Any) -> tuple[Any, ...]:
    """Tests for the Arrow types that are strings of bytes in another form; an array of nulls is one of tombstones."""
    types = pa.types
    return (
        types.is_string,
        types.is_large_binary,
        types.is_large_string,
        types.is_binary_view,
        types.is_string_view,
        types.is_fixed_size_binary,
        types.is_null,
    )


def _parts(numpy: Any, array: Any, what: str) -> tuple[bytes, memoryview]:
    """Offsets from 0 and the data of a binary array that may be a slice. ValueError, TooLarge for lengths."""
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = numpy.frombuffer(offsets_buffer, "<i4", len(array) + 1, 4 * array.offset)
    lengths = offsets[1:] - offsets[:-1]
    check_lengths(what, int(lengths.min()), int(lengths.max()))
    first, last = int(offsets[0]), int(offsets[-1])
    data = memoryview(b"") if data_buffer is None else memoryview(data_buffer)[first:last]
    return (offsets if first == 0 else offsets - offsets[0]).tobytes(), data
