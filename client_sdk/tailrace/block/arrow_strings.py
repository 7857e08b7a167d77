"""Arrow arrays of strings in each form that Arrow has: their lengths, their nulls, and the same strings as binary.

The forms are binary and string, large ones, views, fixed sizes, dictionaries of these, extension types over these, and
an array of nulls alone. Arrays may be slices. Lengths and nulls need no copy of the strings, so a caller can check a
large array, and cut it, before it converts the pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.header import BODY_BYTES_MAX
from tailrace.block.lazy import numpy_or_none, pyarrow
from tailrace.errors import TooLarge

if TYPE_CHECKING:
    import numpy.typing as npt

# A view has its length in front, and the bytes, or their place, behind it.
_VIEW_NUMBERS = 4


def is_strings(kind: Any) -> bool:
    """Tells whether arrays of an Arrow type are strings in one of the forms."""
    types = pyarrow().types
    if types.is_dictionary(kind):
        return is_strings(kind.value_type)
    if hasattr(kind, "storage_type"):
        return is_strings(kind.storage_type)
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_binary,
            types.is_string,
            types.is_large_binary,
            types.is_large_string,
            types.is_binary_view,
            types.is_string_view,
            types.is_fixed_size_binary,
            types.is_null,
        )
    )


def lengths_of(array: Any) -> npt.NDArray[Any]:
    """Returns the bytes of each string, int64; 0 for a null."""
    pa, numpy = pyarrow(), numpy_or_none()
    array = _storage(array)
    kind, rows = array.type, len(array)
    if pa.types.is_dictionary(kind):
        if not len(array.dictionary):
            return numpy.zeros(rows, "<i8")  # type: ignore[no-any-return]
        chosen = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        lengths = lengths_of(array.dictionary)[chosen]
    elif pa.types.is_null(kind):
        return numpy.zeros(rows, "<i8")  # type: ignore[no-any-return]
    elif _is_view(kind):
        views = numpy.frombuffer(array.buffers()[1], "<i4")[_VIEW_NUMBERS * array.offset :]
        lengths = views[: _VIEW_NUMBERS * rows : _VIEW_NUMBERS].astype("<i8")
    elif pa.types.is_fixed_size_binary(kind):
        lengths = numpy.full(rows, kind.byte_width, "<i8")
    else:
        is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
        number = numpy.dtype("<i8" if is_large else "<i4")
        offsets = numpy.frombuffer(array.buffers()[1], number, rows + 1, number.itemsize * array.offset)
        lengths = numpy.diff(offsets).astype("<i8", copy=False)
    nulls = nulls_of(array)
    if nulls is not None:
        lengths[nulls] = 0
    return lengths  # type: ignore[no-any-return]


def nulls_of(array: Any) -> npt.NDArray[Any] | None:
    """Returns True for each null; None if there is none."""
    pa, numpy = pyarrow(), numpy_or_none()
    array = _storage(array)
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        of_dictionary = nulls_of(array.dictionary)
        chosen = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        nulls = of_dictionary[chosen] | array.indices.is_null().to_numpy(zero_copy_only=False)  # type: ignore[index]
        return nulls if nulls.any() else None
    if not array.null_count:
        return None
    if pa.types.is_null(array.type):
        return numpy.ones(len(array), numpy.bool_)  # type: ignore[no-any-return]
    return array.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_binary(array: Any) -> Any:
    """Returns strings as an array of type binary, without a copy if possible.

    TooLarge if they have 2 GiB or more, so cut a large array first.
    """
    pa = pyarrow()
    array = _storage(array)
    if pa.types.is_dictionary(array.type):
        values = _storage(array.dictionary)
        if _is_view(values.type):  # Arrow decodes no dictionary of views
            array = pa.DictionaryArray.from_arrays(array.indices, to_binary(values))
        array = _storage(array.dictionary_decode())
    if array.type == pa.binary():
        return array
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        # Only now it begins at 0: a slice far behind in a large array would not be cast, however short it is.
        array = pa.concat_arrays([array, array[:0]])
    try:
        return array.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise TooLarge(f"the strings do not fit into a block, whose body has at most {BODY_BYTES_MAX} bytes") from error


def _is_view(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_binary_view(kind) or types.is_string_view(kind))


def _storage(array: Any) -> Any:
    return array.storage if hasattr(array, "storage") else array
