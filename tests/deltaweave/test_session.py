"""Sessions that cannot do the work: stopped ones, and those of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table, errors
from tests.builders import write_table
from tests.conftest import TINY_DATA

# Stops the session from another thread while a task of the merge runs.
STOPPED = """
import json, sys, threading, time
from pathlib import Path
import deltaweave
from deltaweave import Table

path, begun, conf = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
spark = deltaweave.local_session(**conf)
table = Table(spark, path)
table.create_if_missing("k LONG, v LONG")

def slow(batches):
    begun.touch()
    time.sleep(60)
    yield from batches

source = spark.range(3).selectExpr("id AS k", "id AS v").mapInArrow(slow, "k LONG, v LONG")
merge = table.merge(source, on="t.k = s.k").when_matched_update_all().when_not_matched_insert_all()

def stop():
    while not begun.exists():
        time.sleep(0.01)
    spark.stop()

threading.Thread(target=stop).start()
told = []
for call in (merge.execute, merge.execute, lambda: Table(spark, path).version()):
    try:
        call()
    except BaseException as error:
        told.append([type(error).__name__, str(error)])
print(json.dumps(told))
"""


def test_a_session_that_is_stopped_during_a_merge_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "table"
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED, str(path), str(tmp_path / "begun"), json.dumps(TINY_DATA)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert [kind for kind, _ in told] == ["SessionEndedError"] * 3, told
    during, after, _ = (message for _, message in told)
    assert f"MERGE into {path}" in during
    assert "the Spark session has ended" in during
    assert errors.NOTHING_WRITTEN in during
    assert "Start a new session" in after
    assert not (path / "_delta_log" / f"{1:020}.json").exists()


class ConnectSession:
    """What tells a session of Spark Connect: its class's module.

    The real one needs packages that nothing else here does, and no call gets as far as its server.
    """

    __module__ = "pyspark.sql.connect.session"


class ConnectFrame:
    """What a DataFrame of that session says of it."""

    sparkSession = ConnectSession()  # noqa: N815 - Spark's name


MERGE = "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN DELETE"
DOORS: dict[str, Callable[[Any, Any], object]] = {
    "merge": lambda connect, _: deltaweave.merge(connect, MERGE),
    "explain": lambda connect, _: deltaweave.explain(connect, MERGE),
    "table": lambda connect, _: Table(connect, "/tmp/t"),
    "table_by_name": lambda connect, _: Table(connect, "t"),
    "source": lambda connect, table: table.merge(ConnectFrame(), on="t.k = s.id"),
    "rows": lambda connect, table: table.write(ConnectFrame(), "append"),
    "apply_changes": lambda connect, _: deltaweave.apply_changes(
        connect, "/tmp/t", "s", keys=["k"], sequence_by="n"
    ),
    "apply_changes_of_its_rows": lambda connect, table: deltaweave.apply_changes(
        table.spark, table.path_or_name, ConnectFrame(), keys=["id"], sequence_by="id"
    ),
    "merge_on_read": lambda connect, _: MergeOnReadTable(
        connect, "/tmp/t", keys=["k"], sequence_by="n", late_by=timedelta(1)
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_session_of_spark_connect_is_refused_at_every_door(
    spark: SparkSession, tmp_path: Path, door: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    with pytest.raises(errors.UnsupportedSessionError, match="Spark Connect") as raised:
        DOORS[door](ConnectSession(), Table(spark, path))
    assert isinstance(raised.value, errors.Terminal)
    assert raised.value.hint
