"""Sessions of our own and who gets at them, and those that cannot do the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table, errors
from deltaweave._session import local_conf
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
errors = []
for call in (merge.execute, merge.execute, lambda: Table(spark, path).version()):
    try:
        call()
    except BaseException as error:
        errors.append([type(error).__name__, str(error)])
print(json.dumps(errors))
"""


# A session with its UI, in a process whose environment names no address.
LISTENING = """
import json, os, sys
os.environ.pop("SPARK_LOCAL_IP", None)
import deltaweave

spark = deltaweave.local_session(**json.loads(sys.argv[1]))
assert spark.range(3).count() == 3
assert "SPARK_LOCAL_IP" not in os.environ
print(spark.sparkContext.uiWebUrl)
print(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
sys.stdin.read()
"""


def listening_addresses(process_id: int) -> dict[int, str]:
    """The ports on which a process listens, with their addresses as the kernel writes them."""
    descriptors = Path(f"/proc/{process_id}/fd")
    opened = {os.readlink(each) for each in descriptors.iterdir() if each.is_symlink()}
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process_id}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *others = line.split()
            if state == "0A" and f"socket:[{others[5]}]" in opened:
                address, port = local.split(":")
                found[int(port, 16)] = address
    return found


@pytest.mark.minutes
def test_all_ports_of_a_local_session_are_on_loopback() -> None:
    conf = {**TINY_DATA, "spark.ui.enabled": "true", "spark.ui.port": "0"}
    child = subprocess.Popen(
        [sys.executable, "-c", LISTENING, json.dumps(conf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        ui = child.stdout.readline().strip()
        found = listening_addresses(int(child.stdout.readline()))
        child.communicate("")
    assert int(ui.rpartition(":")[2]) in found
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert len(found) >= 3, found  # the gateway, the UI, and the driver's RPC
    assert {port: address for port, address in found.items() if address not in loopback} == {}


LISTENS = ("spark.driver.bindAddress", "spark.driver.host", "spark.authenticate")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("127.0.0.1", "127.0.0.1", "true")),
        ({"spark.master": "local"}, ("127.0.0.1", "127.0.0.1", "true")),
        ({"spark.master": "local[2, 3]"}, ("127.0.0.1", "127.0.0.1", "true")),
        # Spark makes secrets only where no other process needs to know them
        ({"spark.master": "local-cluster[2,1,1024]"}, ("127.0.0.1", "127.0.0.1", None)),
        ({"spark.master": "spark://master:7077"}, (None, None, None)),
        (
            {"spark.driver.bindAddress": "0.0.0.0", "spark.authenticate": "false"},
            ("0.0.0.0", "127.0.0.1", "false"),
        ),
    ],
)
def test_only_drivers_without_other_machines_listen_on_loopback(
    given: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    conf = local_conf(given)
    assert tuple(conf.get(key) for key in LISTENS) == expected


@pytest.mark.minutes
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
    assert errors.NOTHING_COMMITTED in during
    assert "Start a new session" in after
    assert not (path / "_delta_log" / f"{1:020}.json").exists()


class ConnectSession:
    """What marks a session of Spark Connect: its class's module.

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


class DeltaTable:
    """What marks Delta's own: its class's module. No call gets as far as its JVM."""

    __module__ = "delta.tables"


ROWS_OF_OTHERS: dict[str, tuple[Any, str, str]] = {
    "pandas": (pd.DataFrame({"k": [1]}), "a DataFrame of pandas", "spark.createDataFrame(rows)"),
    # A column can have any name.
    "pandas_with_that_column": (pd.DataFrame({"sparkSession": [1]}), "of pandas", "createData"),
    "pyarrow": (pa.table({"k": [1]}), "a Table of pyarrow", "spark.createDataFrame(rows)"),
    "delta": (DeltaTable(), "a DeltaTable of delta", "table.toDF()"),
    "list": ([(1, 10)], "a value of type list", "spark.createDataFrame(rows)"),
    "nothing": (None, "None", "spark.table(name)"),
}


@pytest.mark.parametrize("rows", ROWS_OF_OTHERS)
@pytest.mark.parametrize("door", ["merge", "write", "apply_changes"])
def test_rows_that_are_no_data_frame_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, rows: str, door: str
) -> None:
    given, kind, hint = ROWS_OF_OTHERS[rows]
    table = Table(spark, str(tmp_path / "table"))
    calls: dict[str, Callable[[], object]] = {
        "merge": lambda: table.merge(given, on="t.k = s.k"),
        "write": lambda: table.write(given, "append"),
        "apply_changes": lambda: deltaweave.apply_changes(
            spark, table.path_or_name, given, keys=["k"], sequence_by="k"
        ),
    }
    with pytest.raises(errors.StatementError) as refused:
        calls[door]()
    assert kind in refused.value.problem
    assert "a Spark DataFrame is needed" in refused.value.problem
    assert hint in str(refused.value.hint)
    assert refused.value.table == table.path_or_name


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        (DeltaTable(), "a DeltaTable of delta", "table.detail().first().location"),
        (Path("/tmp/t"), "a PosixPath of pathlib", "as a string"),
        (pd.DataFrame(), "a DataFrame of pandas", "as a string"),
        (None, "None", "as a string"),
    ],
)
def test_a_table_is_given_by_its_path_or_name(
    spark: SparkSession, given: Any, said: str, hint: str
) -> None:
    with pytest.raises(errors.StatementError, match=f"is given as {said}, and") as refused:
        Table(spark, given)
    assert hint in str(refused.value.hint)


def test_the_session_comes_first() -> None:
    for call in (
        lambda: Table("/tmp/t", None),  # type: ignore[arg-type]
        lambda: deltaweave.merge(MERGE, None),  # type: ignore[arg-type]
        lambda: deltaweave.explain(pd.DataFrame(), MERGE),  # type: ignore[arg-type]
        lambda: deltaweave.enable(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.StatementError, match="a SparkSession is needed"):
            call()  # type: ignore[no-untyped-call]


WITHOUT_DELTA = """
import sys
import deltaweave
from pyspark.sql import SparkSession
from deltaweave._session import delta_conf

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.log.level", "OFF")
if sys.argv[1] != "none":
    builder = builder.config("spark.jars.packages", delta_conf()["spark.jars.packages"])
if sys.argv[1] == "extension":
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
try:
    deltaweave.Table(builder.getOrCreate(), "/nowhere/table").exists()
except deltaweave.errors.UnsupportedSessionError as error:
    print(error)
"""


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("jars", "said"),
    [
        ("none", ["the session has no Delta Lake", "spark.jars.packages=io.delta:delta-spark"]),
        ("jars", ["has Delta's jars, but was started without Delta's extension and Delta's cat"]),
        ("extension", ["has Delta's jars, but was started without Delta's catalog."]),
    ],
)
def test_the_error_of_a_session_without_delta_names_missing_settings(
    jars: str, said: list[str]
) -> None:
    command = [sys.executable, "-c", WITHOUT_DELTA, jars]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    for each in [
        *said,
        "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and",
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "Nothing was read or written.",
    ]:
        assert each in ran.stdout


OF_JAVA = """
import sys
import deltaweave
try:
    deltaweave.local_session()
except deltaweave.errors.UnsupportedSessionError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("release", "found"), [(None, "found none"), ('openjdk version "11.0.2"', "found Java 11")]
)
def test_without_the_right_java_an_error_names_the_one_that_is_needed(
    tmp_path: Path, release: str | None, found: str
) -> None:
    if release is not None:
        (tmp_path / "bin").mkdir()
        java = tmp_path / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho '{release}' >&2\nexit 1\n")
        java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", OF_JAVA],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, *rest = ran.stdout.splitlines()
    assert first == (
        f"starting Spark failed: deltaweave needs Java 17 or 21 and {found}: install one or set "
        "JAVA_HOME."
    )
    assert rest == ["Nothing was read or written."]


# In the place of Spark's own: notes how it was started, and ends.
SUBMIT = """#!/bin/sh
folder=${0%/bin/*}
echo "$SPARK_LOCAL_IP" >"$folder/ip"
printf '%s\\n' "$@" >"$folder/arguments"
while [ $# -gt 0 ]; do
  if [ "$1" = --properties-file ]; then
    cat "$2" >"$folder/properties"
    stat -c %a "$2" >"$folder/mode"
  fi
  shift
done
exit 1
"""
STARTS = """
import json, os, sys
import deltaweave
before = dict(os.environ)
try:
    deltaweave.local_session(**json.loads(sys.argv[1]))
except Exception as error:
    print(type(error).__name__)
del os.environ["PYSPARK_PYTHON"]
assert os.environ == before
"""


def started(home: Path, conf: dict[str, str]) -> dict[str, str]:
    """How Spark is started with a configuration: what it is given, by name."""
    submit = home / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_IP")
    }
    ran = subprocess.run(
        [sys.executable, "-c", STARTS, json.dumps(conf)],
        env={**kept, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "PySparkRuntimeError\n"), ran.stderr
    return {each.name: each.read_text() for each in home.iterdir() if each.is_file()}


def test_no_secret_is_on_the_command_line_that_all_users_can_read(tmp_path: Path) -> None:
    secrets = {
        "spark.hadoop.fs.s3a.secret.key": "hush/\\hush",
        "spark.hadoop.fs.s3a.access.key": "hush1",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "hush2==",
        "spark.authenticate.secret": "hush3",
        "spark.ssl.keyStorePassword": "hush4",
    }

    given = started(tmp_path, {**secrets, "spark.master": "spark://master:7077", "spark.x": "seen"})

    assert "spark.x=seen\n" in given["arguments"]
    assert "--load-spark-defaults\npyspark-shell\n" in given["arguments"]
    assert "hush" not in given["arguments"]
    properties = dict(line.split("=", 1) for line in given["properties"].splitlines())
    assert properties == {k: v.replace("\\", "\\\\") for k, v in secrets.items()}
    assert given["mode"] == "600\n"
    assert given["ip"] == "\n"  # executors of a cluster have to reach the driver


def test_a_spark_on_this_machine_listens_on_loopback_and_asks_who_connects(tmp_path: Path) -> None:
    given = started(tmp_path, {})

    assert given["ip"] == "127.0.0.1\n"
    for pair in ("spark.driver.bindAddress=127.0.0.1", "spark.authenticate=true"):
        assert f"--conf\n{pair}\n" in given["arguments"]
    assert "properties" not in given


def test_nobody_without_the_secret_connects_to_a_driver(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    classes = context._jvm.org.apache.spark
    conf = classes.SparkConf(False)
    default = getattr(classes.SecurityManager, "$lessinit$greater$default$3")()
    nobody = classes.SecurityManager(conf, context._jvm.scala.Option.empty(), default)
    own = context._jsc.sc().getConf()
    somebody = classes.SparkEnv.get().securityManager()
    stranger = classes.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, nobody, True)
    friend = classes.rpc.RpcEnv.create("friend", "127.0.0.1", 0, own, somebody, True)
    driver = classes.rpc.RpcAddress("127.0.0.1", int(own.get("spark.driver.port")))
    try:
        assert friend.setupEndpointRef(driver, "HeartbeatReceiver") is not None
        with pytest.raises(Py4JJavaError):
            stranger.setupEndpointRef(driver, "HeartbeatReceiver")
    finally:
        stranger.shutdown()
        friend.shutdown()
