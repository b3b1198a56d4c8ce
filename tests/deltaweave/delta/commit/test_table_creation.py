"""Tables are created where this user may write, and nowhere else is anything left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors


def test_a_place_that_is_closed_or_a_file_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.StatementError, match="file is a file, and not a directory"):
        Table(spark, str(tmp_path / "file" / "orders")).create_if_missing("id INT")

    # Its directories look writable to the superuser, and take no file. The lock was waited for.
    if Path("/proc/self").exists():
        with pytest.raises(errors.AccessDeniedError, match="cannot be made: its file system"):
            Table(spark, "/proc/orders").create_if_missing("id INT")

    # The superuser, as whom tests may run, may write everywhere.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(errors.AccessDeniedError) as refused:
        Table(spark, str(tmp_path / "new" / "orders")).create_if_missing("id INT")
    assert f"the directory {tmp_path} may not be written" in str(refused.value)
    assert refused.value.state == "Nothing was written."
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
