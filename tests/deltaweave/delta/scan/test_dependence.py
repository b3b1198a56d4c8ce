"""Paths of files are compared with the target's, however they are written."""

from __future__ import annotations

import pytest

from deltaweave.delta.scan.dependence import _directory


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
    assert _directory(uri) == path
