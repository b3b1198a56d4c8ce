"""Paths of files are compared with the target's, however they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deltaweave.delta.scan.dependence import directory_of, show_files_of


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3a://bucket/lake/orders", "/lake/orders/"),
        ("s3://bucket/lake/orders/", "/lake/orders/"),  # another name of the file system
        ("hdfs://one:8020/", "/"),
        ("file:/nowhere/a%20b", "/nowhere/a b/"),
        ("file:///nowhere/a", "/nowhere/a/"),
        ("/nowhere/a/../b", "/nowhere/b/"),
        ("file:/nowhere/a%0Ab%0Dc%09d", "/nowhere/a\nb\rc\td/"),
        ("s3a://bucket/a%0Ab", "/a\nb/"),
        ("s3a://bucket/a%3Fb%23c%2520", "/a?b#c%20/"),
        ("s3a://bucket/%5Ba%5D;b/\u00fc", "/[a];b/\u00fc/"),
    ],
)
def test_the_path_of_a_uri_is_that_of_the_files(uri: str, path: str) -> None:
    assert directory_of(uri) == path


def test_of_many_files_only_links_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, source = tmp_path / "target", tmp_path / "source"
    for each in (target, source):
        each.mkdir()
        for number in range(100):
            (each / str(number)).touch()
    followed: list[str] = []
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: followed.append(path) or real(path))
    assert not show_files_of(target, [str(source)])
    assert len(followed) == 1
    os.symlink(target, source / "a directory, whose files would be listed as its own")
    assert not show_files_of(target, [str(source)])
    os.symlink(target / "7", source / "link")
    assert show_files_of(target, [str(source)])
    assert show_files_of(
        target, [str(source / "a directory, whose files would be listed as its own")]
    )
