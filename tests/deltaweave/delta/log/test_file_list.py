"""Lists of files are read in queries of bounded size."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaweave import Table
from deltaweave.delta.log import actions, file_list
from tests.builders import write_table


def test_many_files_are_read_in_several_queries_and_in_their_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k,) for k in range(50)], "k INT", files=5)
    snapshot = Table(spark, path).snapshot()
    monkeypatch.setattr(actions, "FEW", 0)
    statistics = {"stats": F.col("stats")}
    at_once = snapshot.file_list().rows_with(statistics)
    read: list[int] = []
    data_frame = vars(file_list.FileList)["data_frame"].fget

    def counted(files: file_list.FileList) -> object:
        read.append(int(files.files.size()))
        return data_frame(files)

    monkeypatch.setattr(file_list.FileList, "data_frame", property(counted))
    monkeypatch.setattr(file_list, "FILES_OF_A_QUERY", 2)
    assert snapshot.file_list().rows_with(statistics).equals(at_once)
    assert read == [2, 2, 1]
