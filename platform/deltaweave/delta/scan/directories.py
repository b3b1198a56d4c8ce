"""Whether directories are the same, however they are written, linked or mounted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit


def show_files_of(target: Path, directories: Iterable[str]) -> bool:
    """Return whether links or mounts show files of the target in these directories.

    Directories are compared by their identity on the disk. A file that is no link lies where its
    directory does, and there may be millions of them, so no other is looked at.
    """
    found = set()
    for directory in directories:
        found.add(Path(os.path.realpath(directory)))
        with os.scandir(directory) as entries:
            links = [each.path for each in entries if each.is_symlink() and not each.is_dir()]
        found.update(Path(os.path.realpath(link)).parent for link in links)
    above = {each for directory in found for each in (directory, *directory.parents)}
    return any(os.path.samefile(each, target) for each in above)


def directory_of(uri: str) -> str:
    """Return the path of a URI, links resolved, and with a slash at its end.

    One file system may have several names (`s3`, `s3a`; a name service and its nodes), so paths
    alone are compared. In a URI, line breaks and the like are escaped, which a path may have.
    """
    split = urlsplit(uri)
    plain = unquote(split.path)
    if split.scheme in ("", "file"):
        plain = os.path.realpath(plain)
    return f"{plain.rstrip('/')}/"
