"""The lock of a table excludes writers, and nobody else can take it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from deltaweave import errors
from deltaweave.delta.commit import table_lock
from tests.support.lock_users import alone, count_up, session_with_limit
from tests.support.locks import held_by_another_process, is_free, waits_for_locks
from tests.support.locks import lock_file as lock_of

ROOT = Path(__file__).parents[4]
OWNER, MEMBER, READER, GROUP = 50_001, 50_002, 50_003, 50_010
two_users = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only the superuser runs processes of several users; the tests of modes hold the rest",
)


@pytest.fixture
def table() -> Iterator[Path]:
    """The directory of a table, which other users reach too."""
    above = Path(tempfile.mkdtemp())
    try:
        above.chmod(0o755)
        directory = above / "orders"
        (directory / "_delta_log").mkdir(parents=True)
        yield directory
    finally:
        shutil.rmtree(above)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def run_as(user: int, table: Path, what: str, *, seconds: float = 60) -> Iterator[subprocess.Popen]:
    groups = str(GROUP) if user == MEMBER else ""
    arguments = [str(user), str(user), groups, str(seconds), str(table), what]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.lock_users", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def owned(table: Path, *, group: int = OWNER, bits: int = 0o755) -> None:
    for each in (table, table / "_delta_log"):
        os.chown(each, OWNER, group)
        each.chmod(bits)


# Who may open the lock file: those who may create files in the log's directory.
@pytest.mark.parametrize(
    ("of_directory", "expected"),
    [
        (0o700, 0o600),  # its owner alone
        (0o755, 0o600),  # others read
        (0o750, 0o600),
        (0o775, 0o660),  # its group writes
        (0o2770, 0o660),
        (0o720, 0o600),  # the group may not search it, so it cannot create files
        (0o777, 0o666),  # all write
        (0o1777, 0o666),
        (0o757, 0o606),
    ],
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_lock_file_is_for_those_who_may_write_to_its_directory(
    table: Path, of_directory: int, expected: int, umask: int
) -> None:
    (table / "_delta_log").chmod(of_directory)
    before = os.umask(umask)
    try:
        with alone(table, 1):
            assert mode(lock_of(table)) == expected
    finally:
        os.umask(before)
    assert mode(lock_of(table)) == expected


def test_the_lock_file_gets_the_rights_of_a_directory_that_changed(table: Path) -> None:
    lock_of(table).touch()
    lock_of(table).chmod(0o666)
    for bits, expected in ((0o755, 0o600), (0o775, 0o660), (0o755, 0o600)):
        (table / "_delta_log").chmod(bits)
        if os.geteuid() == 0:  # which changes none but new files
            lock_of(table).unlink()
        with alone(table, 1):
            assert mode(lock_of(table)) == expected


NOBODY = 2**32 - 1


def status(user: int, group: int) -> os.stat_result:
    return os.stat_result((0, 0, 0, 1, user, group, 0, 0, 0, 0))


# The owner, a user who writes, one who reads, the group, a group that writes, the mask and others.
@pytest.mark.parametrize(
    ("mask", "of_writers"),
    [
        (7, [(2, 6, 7), (8, 6, 9)]),
        (5, []),  # the mask takes their rights
    ],
)
def test_users_of_an_access_control_list_open_it_if_they_may_write(
    mask: int, of_writers: list[tuple[int, int, int]]
) -> None:
    directory = [(1, 7, NOBODY), (2, 7, 7), (2, 5, 8), (4, 5, NOBODY), (8, 7, 9)]
    directory += [(0x10, mask, NOBODY), (0x20, 5, NOBODY)]
    expected = [(1, 6, NOBODY), (4, 0, NOBODY), (0x20, 0, NOBODY), *of_writers]
    expected += [(0x10, 6, NOBODY)] if of_writers else []
    here = status(1, 2)
    assert table_lock.writers(directory, here, here) == sorted(expected)


@pytest.mark.parametrize(
    ("of_directory", "own", "more"),
    [
        ((1, 2), (1, 2), []),
        ((1, 2), (3, 2), [(2, 6, 1)]),  # another user of the group created it
        ((1, 2), (1, 4), [(8, 6, 2)]),  # its creator could not give it to the directory's group
        ((1, 2), (3, 4), [(2, 6, 1), (8, 6, 2)]),
    ],
)
def test_a_file_of_another_owner_or_group_names_those_of_the_directory(
    of_directory: tuple[int, int], own: tuple[int, int], more: list[tuple[int, int, int]]
) -> None:
    directory = [(1, 7, NOBODY), (4, 7, NOBODY), (0x20, 5, NOBODY)]
    expected = [(1, 6, NOBODY), (4, 0 if own[1] != 2 else 6, NOBODY), (0x20, 0, NOBODY), *more]
    expected += [(0x10, 6, NOBODY)] if more else []
    assert table_lock.writers(directory, status(*of_directory), status(*own)) == sorted(expected)


@two_users
def test_a_reader_with_every_lock_it_can_get_does_not_block(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").touch()
    owned(table, group=GROUP, bits=0o775)
    (table / "number").write_text("0")
    os.chown(table / "number", OWNER, GROUP)
    with run_as(OWNER, table, "1") as first:
        assert said(first) == "done"
    with run_as(READER, table, "reads") as reader:
        got, held = said(reader).split()
        assert (got, int(held) >= 3) == ("held", True)  # directories and files that it may read
        with run_as(OWNER, table, "3", seconds=5) as writer:
            assert said(writer) == "done"
    assert (table / "number").read_text() == "4"


@two_users
@pytest.mark.parametrize("next_writer", [OWNER, 0])
def test_the_next_commit_closes_a_lock_file_that_was_opened_to_readers(
    table: Path, next_writer: int
) -> None:
    owned(table)
    (table / "number").write_text("0")
    os.chown(table / "number", OWNER, OWNER)
    with run_as(OWNER, table, "1") as first:
        assert said(first) == "done"
    subprocess.run(["chmod", "-R", "a+rX", table], check=True)
    assert mode(lock_of(table)) == 0o644
    with run_as(next_writer, table, "1") as writer:
        assert said(writer) == "done"
    assert mode(lock_of(table)) == 0o600
    with run_as(READER, table, "reads") as reader:
        assert said(reader).startswith("held ")
        with run_as(OWNER, table, "1", seconds=5) as writer:
            assert said(writer) == "done"


@two_users
@pytest.mark.parametrize("first", [OWNER, MEMBER, 0])
def test_users_of_a_group_that_share_a_table_share_its_lock(table: Path, first: int) -> None:
    owned(table, group=GROUP, bits=0o2775)
    number = table / "number"
    number.write_text("0")
    os.chown(number, OWNER, GROUP)
    number.chmod(0o664)
    with run_as(first, table, "1") as process:
        assert said(process) == "done"
    assert lock_of(table).stat().st_gid == GROUP
    second = MEMBER if first == OWNER else OWNER
    with run_as(second, table, "holds", seconds=5) as holder:
        assert said(holder) == "held"
        with run_as(first, table, "1", seconds=0.2) as waits:
            message = said(waits)
    assert message.startswith("TableLockedError MERGE into orders failed: ")
    for part in (f"process {holder.pid} of user {second} on host", "Nothing was committed"):
        assert part in message


@two_users
def test_a_lock_file_that_a_writer_may_not_open_is_an_error(table: Path) -> None:
    owned(table, group=GROUP, bits=0o2775)
    lock_of(table).touch(mode=0o600)  # of the superuser
    with run_as(MEMBER, table, "1") as process:
        assert said(process).startswith("LockFileError MERGE into orders failed: ")


@two_users
def test_without_write_permission_the_commit_is_refused_and_not_the_lock(
    table: Path,
) -> None:
    owned(table)
    with run_as(READER, table, "holds") as process:
        assert said(process) == "held"
        assert not lock_of(table).exists()


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to(path.parent / "nowhere"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: path.write_text("a user's notes"),
        lambda path: (
            (path.parent / "other").write_text("a user's notes"),
            os.link(path.parent / "other", path),
        ),
    ],
    ids=["link", "dangling link", "pipe", "directory", "contents", "hard link"],
)
def test_what_is_no_lock_file_is_left_alone_and_is_an_error(
    table: Path, plant: Callable[[Path], object]
) -> None:
    path = lock_of(table)
    plant(path)
    before = path.lstat()
    with pytest.raises(errors.LockFileError) as raised, alone(table, 1):
        pytest.fail("it ran without the lock")
    assert (raised.value.table, raised.value.lock_file) == ("orders", str(path))
    assert errors.NOTHING_COMMITTED in str(raised.value)
    after = path.lstat()
    assert (after.st_mode, after.st_size) == (before.st_mode, before.st_size)
    assert not (path.parent / "nowhere").exists()


def test_a_copy_by_hard_links_shares_the_lock_and_leaves_its_file_alone(table: Path) -> None:
    with alone(table, 1):
        pass
    shutil.copytree(table, table.with_name("copy"), copy_function=os.link)
    before = lock_of(table).stat()
    with alone(table, 1):
        assert not is_free(table)
        with pytest.raises(errors.TableLockedError), alone(table.with_name("copy"), 0):
            pytest.fail("its original is locked")
    after = lock_of(table).stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert is_free(table)


def test_a_mount_that_refuses_to_change_permissions_has_a_lock(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    (table / "_delta_log").chmod(0o775)
    monkeypatch.setattr(table_lock.os, "fchmod", refuse)
    with alone(table, 1):
        assert not is_free(table)


def creating(directory: Path, at: Path | None = None) -> table_lock.TableLock:
    location = f"file:{at or directory}"
    lock = table_lock.TableLock(session_with_limit(0), location, table="orders")
    lock.take_for_creation(lambda: directory.mkdir(exist_ok=True))
    return lock


@pytest.mark.parametrize("through_a_link", [False, True])
def test_two_creators_of_a_table_exclude_each_other(table: Path, *, through_a_link: bool) -> None:
    new, other = table.with_name("new"), table.with_name("other name")
    other.symlink_to(new)
    with creating(new), pytest.raises(errors.TableLockedError):
        creating(new, at=other if through_a_link else new)
    assert sorted(each.name for each in table.parent.iterdir()) == ["new", "orders", "other name"]


def test_a_place_that_is_refused_is_not_waited_for(table: Path) -> None:
    def refused() -> None:
        raise errors.AccessDeniedError("its file system refuses it.", table="orders")

    lock = table_lock.TableLock(session_with_limit(600), f"file:{table}", table="orders")
    with pytest.raises(errors.AccessDeniedError):
        lock.take_for_creation(refused)


def test_a_directory_whose_parent_takes_no_file_is_locked_itself(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_file, opened = table.parent, table_lock.os.open

    def refuse(path: Path, *arguments: object) -> int:
        if Path(path).parent == of_file and Path(path) != table:
            raise PermissionError(errno.EACCES, "Permission denied")
        return int(opened(path, *arguments))

    monkeypatch.setattr(table_lock.os, "open", refuse)
    may = os.access
    monkeypatch.setattr(
        table_lock.os, "access", lambda path, *a, **k: path != of_file and may(path, *a, **k)
    )
    with creating(table):
        descriptor = opened(table, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


def test_what_cannot_be_deleted_after_a_creation_fails_nothing(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    new = table.with_name("new")
    with monkeypatch.context() as patched, creating(new):
        patched.setattr(Path, "unlink", refuse)  # a directory in which users delete their own files
    with creating(new):  # the lock is free, though its file stayed
        pass


# Who holds the lock each time that the limit has passed, and after how many limits the wait ends.
@pytest.mark.parametrize(
    ("holders", "limits"),
    [
        (["one", "one"], 1),
        (["one", "other", "third", "third"], 3),  # a queue of commits; the last one hangs
    ],
)
def test_the_time_limit_starts_again_when_another_commit_takes_the_lock(
    table: Path, monkeypatch: pytest.MonkeyPatch, holders: list[str], limits: int
) -> None:
    named, clock, slept = iter(holders), [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    # Only this module's clock: other threads of the process have the real one.
    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(table_lock, "lock_holder", lambda _: next(named))
    monkeypatch.setattr(table_lock, "time", fake)
    with (
        held_by_another_process(lock_of(table)),
        pytest.raises(errors.TableLockedError) as raised,
        alone(table, 10),
    ):
        pytest.fail("another process holds it")
    assert raised.value.holder == holders[-1]
    assert raised.value.waited_seconds == pytest.approx(10, abs=0.2)
    assert sum(slept) == pytest.approx(limits * 10, abs=limits * 0.2)


def test_a_file_that_another_host_deleted_is_locked_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, lock = iter([OSError(errno.ESTALE, "Stale file handle")]), table_lock.fcntl.flock

    def once_stale(*arguments: int) -> None:
        for error in stale:
            raise error
        lock(*arguments)

    monkeypatch.setattr(table_lock.fcntl, "flock", once_stale)
    with alone(table, 5):
        assert not is_free(table)


# What a killed process, a crash of the machine or another release may leave.
@pytest.mark.parametrize(
    "record",
    ["", "\0" * 200, '{"deltaweave": "lock", "pid": 1', '{"deltaweave": "lock", "new": [1]}'],
)
def test_what_a_record_holds_does_not_matter_to_the_lock(table: Path, record: str) -> None:
    lock_of(table).write_text(record)
    with alone(table, 1):
        assert str(os.getpid()) in lock_of(table).read_text()
    assert lock_of(table).read_text() == ""
    lock_of(table).write_text(record)
    with (
        held_by_another_process(lock_of(table)) as holder,
        pytest.raises(errors.TableLockedError) as raised,
        alone(table, 0),
    ):
        pytest.fail("another process holds it")
    assert str(holder.pid) in raised.value.holder


def test_commits_of_one_process_are_distinguished_by_their_records(table: Path) -> None:
    records = set()
    for _ in range(2):
        with alone(table, 1):
            records.add(lock_of(table).read_text())
            time.sleep(0.01)
    assert len(records) == 2


def test_lock_holders_without_a_record_are_known_by_their_commits(
    table: Path,
) -> None:
    """The holders are on other hosts."""
    holders = []
    for version in range(3):
        os.utime(lock_of(table).parent, (version, version))
        lock_of(table).touch()
        os.utime(lock_of(table).parent, (version, version))
        holders.append(table_lock.lock_holder(lock_of(table)))
    assert len(set(holders)) == 3
    assert holders[2].endswith("another host (last commit: 1970-01-01T00:00:02+00:00)")


def test_a_holder_on_another_host_is_named_by_its_record(table: Path) -> None:
    about = '"pid": 7, "host": "far\\n.away", "user": "ann", "since": "2026-01-01T00:00:00+00:00"'
    lock_of(table).write_text(f'{{"deltaweave": "lock", {about}}}')
    with (
        held_by_another_process(lock_of(table)),
        pytest.raises(errors.TableLockedError) as raised,
        alone(table, 0),
    ):
        pytest.fail("another process holds it")
    at = "since 2026-01-01T00:00:00+00:00"
    assert raised.value.holder == f"process 7 of user ann on host far.away, {at}"


def test_a_killed_process_leaves_the_table_free(table: Path) -> None:
    with run_as(os.geteuid(), table, "holds") as process:
        assert said(process) == "held"
        assert not is_free(table)
        process.kill()
        process.wait()
        with alone(table, 5):
            assert str(os.getpid()) in lock_of(table).read_text()


def test_threads_and_processes_exclude_each_other_and_lose_nothing(table: Path) -> None:
    (table / "number").write_text("0")
    me = os.geteuid()
    with run_as(me, table, "40") as one, run_as(me, table, "40") as other:
        with ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(count_up, table, 60, 40) for _ in range(4)]:
                each.result()
        assert [said(one), said(other)] == ["done", "done"]
    assert (table / "number").read_text() == str(6 * 40)
    assert is_free(table)


def test_an_error_under_the_lock_releases_it(table: Path) -> None:
    with pytest.raises(ValueError, match="x"), alone(table, 1):
        raise ValueError("x")
    assert is_free(table)


def test_an_interrupt_ends_the_wait(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with held_by_another_process(lock_of(table)):
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=interrupted)
        monkeypatch.setattr(table_lock, "time", clock)
        with pytest.raises(KeyboardInterrupt), alone(table, 60):
            pytest.fail("another process holds it")
    assert is_free(table)


@pytest.mark.parametrize("what", ["the table", "the lock file"])
def test_what_takes_the_place_of_a_locked_file_is_locked_in_turn(table: Path, what: str) -> None:
    def held() -> bool:
        with alone(table, 60):
            return not is_free(table)

    with (
        waits_for_locks() as waits,
        ThreadPoolExecutor(1) as pool,
        held_by_another_process(lock_of(table)),
    ):
        future = pool.submit(held)
        assert waits.began.wait(60)
        if what == "the table":
            table.rename(table.with_name("old"))
            (table / "_delta_log").mkdir(parents=True)
        else:
            lock_of(table).unlink()
        assert future.result(timeout=60) is True


@pytest.mark.parametrize("location", ["s3a://bucket/table", "file:/there/is/no/such/directory"])
def test_elsewhere_there_is_no_lock(location: str) -> None:
    with alone_at(location):
        pass


def alone_at(location: str) -> object:
    return table_lock.alone_on_local_disk(None, location, table="t", operation="MERGE")  # type: ignore[arg-type]


def test_a_file_system_without_locks_is_written_without_one(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(table_lock.fcntl, "flock", refuse)
    with alone(table, 1):
        pass
    assert "commits without a lock among processes: [Errno 38] Function not" in caplog.text


def test_a_lock_that_the_disk_cannot_give_now_is_waited_for(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS says so while its lock service is down: others may hold the lock."""
    failures, lock = [2], table_lock.fcntl.flock

    def refuse(*arguments: int) -> None:
        failures[0] -= 1
        if failures[0] >= 0:
            os.utime(table / "_delta_log", ns=(time.time_ns(),) * 2)  # others commit meanwhile
            raise OSError(errno.ENOLCK, "No locks available")
        lock(*arguments)

    monkeypatch.setattr(table_lock.fcntl, "flock", refuse)
    with alone(table, 5):
        assert not is_free(table)
    failures[0] = 1_000_000
    with (
        pytest.raises(errors.TableLockedError, match=r"no locks now \(\[Errno 37\]") as raised,
        alone(table, 0.05),
    ):
        pytest.fail("the disk gives no locks")
    assert "rpc.statd" in raised.value.hint


def test_a_holder_without_a_record_is_not_waited_for_without_end(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: object) -> None:
        os.utime(table / "_delta_log", ns=(time.time_ns(),) * 2)  # so that it looks like many
        raise BlockingIOError(errno.EWOULDBLOCK, "held")

    monkeypatch.setattr(table_lock.fcntl, "flock", held)
    with pytest.raises(errors.TableLockedError, match="without a record"), alone(table, 0.05):
        pytest.fail("another process holds the lock")


# A line of Linux's list of mounts, as file systems of other machines would give it: this machine
# has none of them. Then whether a lock may not hold on all hosts.
@pytest.mark.parametrize(
    ("mounts_list", "expected"),
    [
        ("ext4 /dev/sda rw", None),
        ("overlay overlay rw,lowerdir=/a", None),
        ("nfs4 server:/lake rw,vers=4.2,local_lock=none", None),
        ("nfs server:/lake rw,vers=3,local_lock=none", None),
        ("nfs server:/lake rw,vers=3,nolock,local_lock=all", "nfs mounted with local_lock=all, no"),
        ("nfs server:/lake rw,vers=3,local_lock=flock", "nfs mounted with local_lock=flock"),
        ("nfs server:/lake rw,vers=3,local_lock=posix", None),  # ours is flock
        ("cifs //server/lake rw,vers=3.1.1", None),
        ("cifs //server/lake rw,vers=3.1.1,nobrl", "cifs mounted with nobrl"),
        ("smb3 //server/lake rw,nobrl", "smb3 mounted with nobrl"),
        ("lustre mgs@tcp:/lake rw,flock", None),
        ("lustre mgs@tcp:/lake rw,localflock", "lustre mounted with localflock"),
        ("ceph mon:/ rw,acl", None),
        ("fuse.glusterfs server:/lake rw", None),
        ("fuse.sshfs host:/lake rw", "fuse.sshfs, which does not show"),
        ("fuse.s3fs s3fs rw", "fuse.s3fs, which does not show"),
        ("9p lake rw,trans=virtio", "9p, which does not show"),
        ("virtiofs lake rw", "virtiofs, which does not show"),
        ("newfs lake rw", "newfs, which does not show"),
    ],
)
def test_a_mount_whose_locks_may_not_hold_on_all_hosts_is_logged_once(
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mounts_list: str,
    expected: str | None,
) -> None:
    place = str(table.parent.resolve()).replace("_", "\\137")  # as it writes odd characters
    listed = table.parent / "mounts"
    lines = ["1 1 8:1 / / rw - ext4 /dev/sda rw", f"2 1 8:1 / {place} rw - xfs /dev/sdb rw"]
    lines += [f"3 1 0:52 / {place} rw,relatime shared:1 - {mounts_list}"]
    lines += [f"4 1 0:53 / {place}-other rw - fuse.other x rw"]
    listed.write_text("\n".join(lines))
    monkeypatch.setattr(table_lock, "MOUNTS", listed)
    for _ in range(2):
        with alone(table, 1):
            pass
    said_of_hosts = [each for each in caplog.messages if "other hosts may commit" in each]
    assert len(said_of_hosts) == (expected is not None)
    assert all(expected is not None and expected in each for each in said_of_hosts)
