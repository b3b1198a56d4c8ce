"""Whether a lock on a file also excludes other hosts, by Linux's list of mounts.

`statfs` returns one number for all kinds of FUSE, and none of the options that decide it for NFS
and SMB. The list of mounts has both.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_LIST = Path("/proc/self/mountinfo")
# Disks of one host, or of virtual machines that do not share them.
_OF_ONE_HOST = re.compile(
    r"apfs|bcachefs|btrfs|exfat|ext[234]|f2fs|fuseblk|jfs|ntfs3?|overlay|ramfs|reiserfs|rootfs|tmpfs"
    r"|vfat|xfs|zfs|fuse\.fuse-overlayfs"
)
# File systems of several hosts that lock for all of them, and the options with which they do not.
_LOCAL_WITH: dict[str, frozenset[str]] = {
    "ceph": frozenset(),
    "cifs": frozenset({"nobrl", "nolock"}),
    "fuse.ceph-fuse": frozenset(),
    "fuse.glusterfs": frozenset(),
    "gfs2": frozenset({"localflocks", "lockproto=lock_nolock"}),
    "gpfs": frozenset(),
    "lustre": frozenset({"localflock"}),
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "nfs4": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "ocfs2": frozenset({"localflocks"}),
    "smb3": frozenset({"nobrl", "nolock"}),
}


def doubt_about_hosts(directory: Path) -> str | None:
    """Return why a lock in a directory may not exclude other hosts; None where it does.

    A file system of one host excludes all that can write to it.
    """
    kind, options = _mount(directory)
    if not kind or _OF_ONE_HOST.fullmatch(kind):
        return None
    if kind not in _LOCAL_WITH:
        return f"it is on {kind}, which does not show whether a lock holds on all hosts"
    local = sorted(_LOCAL_WITH[kind] & options)
    return f"it is on {kind} mounted with {', '.join(local)}" if local else None


def _mount(directory: Path) -> tuple[str, frozenset[str]]:
    """Return the file system that holds a directory, and its options; empty if no list has it."""
    found: tuple[str, frozenset[str]] = ("", frozenset())
    place, longest = os.path.realpath(directory), 0
    with suppress(OSError):
        for line in _LIST.read_text(errors="surrogateescape").splitlines():
            of_mount, _, of_system = line.partition(" - ")
            point, own_options = (_decoded(each) for each in of_mount.split(" ")[4:6])
            kind, _, options = of_system.split(" ")[:3]
            # What was mounted last covers the others at its place.
            if len(point) >= longest and os.path.commonpath([place, point]) == point:
                longest = len(point)
                found = kind, frozenset([*own_options.split(","), *options.split(",")])
    return found


def _decoded(text: str) -> str:
    """Decode a path in the list of mounts, which has spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
