"""Whether a process or thread holds the lock of a table on a local disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_free(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
