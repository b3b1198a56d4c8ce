"""Which files in a log are a whole checkpoint (Delta protocol, section "Checkpoints")."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

# `<version>.checkpoint.parquet`, with a UUID before the suffix, or one of several parts:
# `<version>.checkpoint.<part>.<number of parts>.parquet`.
_NAME = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.parquet|.+)")


def newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """Return the newest whole checkpoint's version and file names; -1 and no names without one.

    A writer that ended between the parts of a checkpoint leaves some of them, which are none.

    >>> whole = "00000000000000000004.checkpoint.parquet"
    >>> newest_checkpoint([whole, "00000000000000000007.checkpoint.0000000001.0000000002.parquet"])
    (4, ['00000000000000000004.checkpoint.parquet'])
    """
    # By version and number of parts; 0 for a checkpoint that is one file.
    files = defaultdict[tuple[int, int], list[str]](list)
    for name in names:
        # Next to a checkpoint, Hadoop may have written hidden checksum files.
        if found := _NAME.fullmatch(name):
            version, number = found.groups()
            files[int(version), int(number or 0)].append(name)
    whole = {key: sorted(found) for key, found in files.items() if key[1] in (0, len(found))}
    if not whole:
        return -1, []
    newest = min(whole, key=lambda key: (-key[0], key[1]))  # one file before several parts
    return newest[0], whole[newest]
