"""An index that refuses some rows until it is mended."""

from tailrace.indexes import MemoryIndex


class PickyIndex(MemoryIndex):
    """Refuses deletions and the value "bad"."""

    is_mended = False

    def apply(self, mutations, checkpoint):
        if not self.is_mended and any(row.value in (b"bad", None) for row in mutations):
            raise ValueError("cannot take it")
        super().apply(mutations, checkpoint)
