"""What Arrow holds in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_KEPT: list[pa.MemoryPool] = []  # what is allocated from a pool may outlive a test


@contextmanager
def held() -> Iterator[pa.MemoryPool]:
    """A memory pool with a peak of its own."""
    default = pa.default_memory_pool()
    _KEPT.append(pa.proxy_memory_pool(default))
    pa.set_memory_pool(_KEPT[-1])
    try:
        yield _KEPT[-1]
    finally:
        pa.set_memory_pool(default)
