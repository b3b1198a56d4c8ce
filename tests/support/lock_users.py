"""Does in a process of its own, and as any user, what others do with the lock of a table.

Run as `python -m tests.support.lock_users UID GID GROUPS LIMIT DIRECTORY WHAT`.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession

from deltaweave.delta.commit.table_lock import alone_on_local_disk
from deltaweave.errors import DeltaweaveError


def session_with_limit(seconds: float) -> SparkSession:
    """All of a session that the lock asks for: its setting."""
    configuration: Any = SimpleNamespace(get=lambda *_: str(seconds))
    return cast(SparkSession, SimpleNamespace(conf=configuration))


def alone(directory: Path, seconds: float) -> Any:
    return alone_on_local_disk(
        session_with_limit(seconds), f"file:{directory}", table="orders", operation="MERGE"
    )


def lock_all_that_can_be_opened(directory: Path) -> None:
    """Hold whatever lock a process can get on files and directories of a table."""
    held = 0
    for path in (directory, *directory.rglob("*")):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            with suppress(OSError):
                descriptor = os.open(path, flags)
                for take in (fcntl.flock, fcntl.lockf):
                    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                        with suppress(OSError):
                            take(descriptor, kind | fcntl.LOCK_NB)
                            held += 1
                            break
    print("held", held, flush=True)
    sys.stdin.read()


def count_up(directory: Path, seconds: float, times: int) -> None:
    """Add to a number as a commit does to versions: a lost one shows."""
    number = directory / "number"
    for _ in range(times):
        with alone(directory, seconds):
            before = int(number.read_text())
            os.sched_yield()
            number.write_text(str(before + 1))
    print("done", flush=True)


def hold(directory: Path, seconds: float) -> None:
    with alone(directory, seconds):
        print("held", flush=True)
        sys.stdin.read()


def main() -> None:
    uid, gid, groups, seconds, directory, what = sys.argv[1:]
    if os.geteuid() == 0:
        os.setgroups([int(each) for each in groups.split(",") if each])
        os.setresgid(*[int(gid)] * 3)
        os.setresuid(*[int(uid)] * 3)
    os.umask(0o077)  # the strictest: what others may do does not follow from it
    try:
        if what == "reads":
            lock_all_that_can_be_opened(Path(directory))
        elif what == "holds":
            hold(Path(directory), float(seconds))
        else:
            count_up(Path(directory), float(seconds), int(what))
    except DeltaweaveError as error:
        print(type(error).__name__, str(error).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
