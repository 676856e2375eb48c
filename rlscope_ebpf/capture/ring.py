"""Reading a BPF ring buffer of fixed-size records as NumPy arrays.

Layout (kernel, Documentation/bpf/ringbuf.rst): the consumer position on a page of its own, the producer position on
the next, then the data, mapped twice in a row so that a record never wraps for the reader. Every record has an 8-byte
header: its length with a busy bit (31) and a discard bit (30), and an offset that only the kernel uses.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

_HEADER = 8
_BUSY = np.uint32(1 << 31)
_DISCARDED = np.uint32(1 << 30)


class Ring:
    """One ring. Not thread-safe: one reader.

    `map_fd` is the ring's map, `size` its bytes (a power of two), `dtype` its records.

    Raises OSError if the ring cannot be mapped.
    """

    def __init__(self, map_fd: int, size: int, dtype: np.dtype[np.void]) -> None:
        page = mmap.PAGESIZE
        self._dtype = dtype
        self._size = size
        self._stride = _HEADER + (dtype.itemsize + 7) // 8 * 8
        self._control = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._shared = mmap.mmap(map_fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumed = np.frombuffer(self._control, "<u8", count=1)
        self._produced = np.frombuffer(self._shared, "<u8", count=1)
        self._bytes = np.frombuffer(self._shared, "u1", offset=page)

    def pending(self) -> int:
        """Records written and not yet read."""
        return int(self._produced[0] - self._consumed[0]) // self._stride

    def fill(self) -> float:
        """Used share of the ring, 0 … 1."""
        return int(self._produced[0] - self._consumed[0]) / self._size

    def read(self, limit: int) -> NDArray[np.void]:
        """Up to `limit` records as an array of the ring's dtype, a copy; they are then gone from the ring.

        Stops before the first record that is still being written.
        """
        start = int(self._consumed[0])
        count = min((int(self._produced[0]) - start) // self._stride, limit)
        if count <= 0:
            return np.empty(0, self._dtype)
        offset = start % self._size
        count = min(count, self._size // self._stride)
        records = self._bytes[offset : offset + count * self._stride].reshape(count, self._stride)
        lengths = np.ascontiguousarray(records[:, :4]).view("<u4").ravel()
        busy = lengths & _BUSY
        if busy.any():
            count = int(np.argmax(busy != 0))
            records, lengths = records[:count], lengths[:count]
            if count == 0:
                return np.empty(0, self._dtype)
        out = np.ascontiguousarray(records[:, _HEADER : _HEADER + self._dtype.itemsize]).view(self._dtype).ravel()
        discarded = lengths & _DISCARDED
        # Only now may the kernel write over them.
        self._consumed[0] = start + count * self._stride
        return out[discarded == 0] if discarded.any() else out

    def close(self) -> None:
        """Unmap."""
        del self._consumed, self._produced, self._bytes
        self._control.close()
        self._shared.close()
