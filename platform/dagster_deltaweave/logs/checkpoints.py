"""Which files in a log are a whole checkpoint (Delta protocol, section "Checkpoints")."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

# `<version>.checkpoint.parquet`, with a UUID before the suffix, or one of several parts:
# `<version>.checkpoint.<part>.<number of parts>.parquet`.
_NAME = re.compile(r"(\d{20})\.checkpoint\.(?:(\d{10})\.(\d{10})\.parquet|.+)")


def newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version of the newest whole checkpoint and its files' names; -1 and none without one.

    A writer that ended between the parts of a checkpoint leaves some of them, which are none.

    >>> whole = "00000000000000000004.checkpoint.parquet"
    >>> newest_checkpoint([whole, "00000000000000000007.checkpoint.0000000001.0000000002.parquet"])
    (4, ['00000000000000000004.checkpoint.parquet'])
    """
    alone = defaultdict[int, list[str]](list)
    parts = defaultdict[tuple[int, int], set[str]](set)
    for name in names:
        # Next to a checkpoint, Hadoop may have written hidden checksum files.
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        version, _, number = found.groups()
        if number is None:
            alone[int(version)].append(name)
        else:
            parts[int(version), int(number)].add(name)
    whole = dict(alone)
    for (version, number), files in parts.items():
        if len(files) == number:
            whole.setdefault(version, sorted(files))
    newest = max(whole, default=-1)
    return newest, sorted(whole.get(newest, ()))
