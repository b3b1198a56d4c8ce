from __future__ import annotations

import io
import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dagster_deltaweave import SparkResource
from deltaweave.warm_driver.address import WarmDriverError, address, fingerprint
from deltaweave.warm_driver.keeper import Keeper
from tests.conftest import TINY_DATA

pytestmark = pytest.mark.minutes

# A process that attaches and then runs, line by line, the code it is sent; it answers `answer`.
CLIENT = """
import json, sys
from deltaweave.warm_driver.client import attach

scope = {"conf": json.loads(sys.argv[1]), "attach": attach}
for line in sys.stdin:
    scope["answer"] = None
    exec(json.loads(line), scope)
    print(json.dumps(scope["answer"]), flush=True)
"""
ATTACH = """
attachment = attach(conf, name={name!r}, idle_seconds={idle_seconds}, orphaned_seconds=600)
spark = attachment.session
answer = attachment.driver
"""
DRIVER = "answer = attachment.driver"


class Client:
    """A process of its own, at the warm driver."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, json.dumps(TINY_DATA)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, code: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def run(self, code: str) -> Any:
        self.send(code)
        return self.answer()

    def attach(self, name: str = "test", idle_seconds: int = 600) -> None:
        self.send(ATTACH.format(name=name, idle_seconds=idle_seconds))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def new_home() -> Iterator[Path]:
    # Not pytest's directories: the path of a socket has room for a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home() as directory:
        yield directory


@pytest.fixture(scope="module")
def start(home: Path) -> Iterator[Callable[[], Client]]:
    clients: list[Client] = []

    def started() -> Client:
        clients.append(Client(home))
        return clients[-1]

    yield started
    for client in clients:
        client.kill()


@pytest.fixture(scope="module")
def drivers() -> Iterator[set[int]]:
    """The drivers that this module started, which end with it."""
    started: set[int] = set()
    yield started
    for driver in started:
        if exists(driver):
            os.kill(driver, signal.SIGTERM)


@pytest.fixture(scope="module")
def pair(start: Callable[[], Client], drivers: set[int]) -> tuple[Client, Client]:
    """Two processes that asked for a driver at the same time, when there was none."""
    first, second = start(), start()
    first.attach("first")
    second.attach("second")
    drivers.update((first.answer(), second.answer()))
    return first, second


@pytest.fixture
def three(drivers: set[int]) -> Iterator[tuple[Client, Client, Client]]:
    """Processes at a driver of their own, in which no other test has cached anything."""
    with new_home() as directory:
        clients = Client(directory), Client(directory), Client(directory)
        for name, client in zip(("first", "second", "third"), clients, strict=True):
            client.attach(name)
            drivers.add(client.answer())
        yield clients
        for client in clients:
            client.kill()


def exists(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and nobody has waited for it


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_processes_that_start_at_once_share_one_driver(
    pair: tuple[Client, Client], home: Path
) -> None:
    assert pair[0].run(DRIVER) == pair[1].run(DRIVER)
    [log] = (home / "deltaweave").glob("*.log")
    assert log.read_text().count("Driver started") == 1
    names = {client.run("answer = list(spark.sparkContext.getJobTags())")[0] for client in pair}
    assert {name.split(" #")[0] for name in names} == {"first", "second"}


def test_each_process_has_a_session_of_its_own(pair: tuple[Client, Client]) -> None:
    first, second = pair
    first.run(
        "spark.conf.set('spark.sql.shuffle.partitions', '7')\n"
        "spark.range(3).createOrReplaceTempView('numbers')"
    )

    # Also in threads that ask for the active session, as Python that starts in Java does.
    seen = """
from threading import Thread
from pyspark.sql import SparkSession
seen = []
def look():
    java = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()
    seen.append([java.conf().get('spark.sql.shuffle.partitions'), spark.catalog.tableExists('numbers')])
look()
thread = Thread(target=look)
thread.start()
thread.join()
answer = seen
"""  # noqa: E501
    assert first.run(seen) == [["7", True]] * 2
    assert second.run(seen) == [["2", False]] * 2


def test_pyspark_works_as_on_a_driver_of_its_own(pair: tuple[Client, Client]) -> None:
    first, _ = pair

    assert first.run("""
context = spark.sparkContext
seen = context.accumulator(0)
tens = context.broadcast([10, 20])
def add(number):
    seen.add(1)
    return number + tens.value[0]
answer = [context.parallelize([1, 2], 2).map(add).collect(), seen.value]
""") == [[11, 12], 2]

    assert first.run("""
import pyarrow as pa
def doubled(batches):
    for batch in batches:
        yield pa.record_batch([pa.array([2 * i for i in batch[0].to_pylist()])], names=["id"])
frame = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string")
answer = [
    frame.toArrow().to_pylist(),
    frame.toPandas().id.tolist(),
    [row.id for row in frame.select("id").mapInArrow(doubled, "id long").collect()],
]
""") == [[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], [1, 2], [2, 4]]

    # The JVM calls this process, as for foreachBatch.
    assert first.run("""
from threading import Event
from pyspark.java_gateway import ensure_callback_server_started
ensure_callback_server_started(context._gateway)
class Called:
    def __init__(self):
        self.event = Event()
    def run(self):
        self.event.set()
    class Java:
        implements = ["java.lang.Runnable"]
called = Called()
spark._jvm.java.lang.Thread(called).start()
answer = called.event.wait(10)
""")


def test_processes_see_the_tables_as_they_are(
    pair: tuple[Client, Client], start: Callable[[], Client], tmp_path: Path
) -> None:
    first, second = pair
    later = start()
    path = tmp_path / "table"
    upsert = f"""
import deltaweave
table = deltaweave.Table(spark, {str(path)!r})
table.create_if_missing("id LONG")
merge = table.merge(spark.range({{}}), on="t.id = s.id").when_matched_update_all()
answer = merge.when_not_matched_insert_all().execute().version
"""
    count = f"answer = spark.read.format('delta').load({str(path)!r}).count()"
    assert first.run(upsert.format(3)) == 1
    assert second.run(count) == 3

    shutil.rmtree(path)  # unseen by Delta, which remembers a table's log
    later.attach("later")
    later.answer()

    assert later.run(upsert.format(1)) == 1
    assert later.run(count) == 1


def test_processes_share_the_lists_of_files_that_one_of_them_asked_for(
    pair: tuple[Client, Client], tmp_path: Path
) -> None:
    """A checksum lists up to 50 files: more are listed by a job over the log, once for all."""
    path = str(tmp_path / "table")
    listed = f"""
import deltaweave
context = spark.sparkContext
context.setJobGroup({{group!r}}, "")
files = deltaweave.Table(spark, {path!r}).snapshot().file_list()
answer = [len(files), len(context.statusTracker().getJobIdsForGroup({{group!r}}))]
"""
    append = "spark.range({rows}, numPartitions={rows}).write.format('delta').mode('append')"
    first, second = pair
    first.run(f"{append.format(rows=60)}.save({path!r})")
    assert first.run(listed.format(group="first"))[1] > 0
    assert second.run(listed.format(group="second")) == [60, 0]
    second.run(f"{append.format(rows=2)}.save({path!r})")
    assert first.run(listed.format(group="first again")) == [62, 0]


def test_nobody_without_the_token_gets_in(pair: tuple[Client, Client], home: Path) -> None:
    files = list((home / "deltaweave").iterdir())
    assert {path.suffix for path in files} == {".sock", ".lock", ".log"}
    assert stat.S_IMODE((home / "deltaweave").stat().st_mode) == 0o700
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files)

    # Where Spark spills rows, beside the directories of all users.
    manager = "spark.sparkContext._jsc.sc().env().blockManager().diskBlockManager()"
    spilled = pair[0].run(f"answer = [each.getPath() for each in {manager}.localDirs()]")
    assert [stat.S_IMODE(Path(each).stat().st_mode) for each in spilled] == [0o700]

    where = "gateway = spark.sparkContext._gateway.gateway_parameters"
    host, port, token = pair[0].run(
        f"{where}\nanswer = [gateway.address, gateway.port, gateway.auth_token]"
    )
    assert host == "127.0.0.1"
    [log] = (home / "deltaweave").glob("*.log")
    assert token not in log.read_text()
    shown = pair[0].run(
        "import os\nfrom pathlib import Path\n"
        "parts = [Path(f'/proc/{attachment.driver}/{each}') for each in ('cmdline', 'environ')]\n"
        "answer = [*(each.read_text() for each in parts), *os.environ.values()]"
    )
    assert not any(token in text for text in shown)
    for wrong in (None, "wrong"):
        parameters = GatewayParameters(address=host, port=port, auth_token=wrong)
        with pytest.raises(Py4JError):
            JavaGateway(gateway_parameters=parameters).jvm.System.currentTimeMillis()


def test_a_killed_process_takes_its_jobs_with_it_and_nothing_else(
    three: tuple[Client, Client, Client],
) -> None:
    first, second, killed = three
    forever = "spark.range(10**13).selectExpr('sum(id * id % 7)').collect()"
    second.run(
        "from threading import Thread\n"
        f"thread = Thread(target=lambda: {forever}, daemon=True)\nthread.start()"
    )
    persistent = "answer = spark.sparkContext._jsc.getPersistentRDDs().size()"
    persistent_before = first.run(persistent)
    killed.send(f"spark.range(1).cache().count()\n{forever}")
    active = "answer = list(spark.sparkContext.statusTracker().getActiveJobsIds())"
    wait_until(lambda: len(first.run(active)) == 2)
    assert first.run(persistent) == persistent_before + 1

    killed.kill()

    wait_until(lambda: len(first.run(active)) == 1)
    # Ctrl-C in a process cancels all jobs: all of its own.
    first.run("spark.sparkContext.cancelAllJobs()")
    assert len(first.run(active)) == 1
    second.run("spark.sparkContext.cancelAllJobs()\nthread.join()")
    wait_until(lambda: first.run(active) == [])
    # What the killed process cached goes too, after its jobs.
    wait_until(lambda: first.run(persistent) <= persistent_before)


def test_a_process_that_leaves_takes_what_it_cached_and_nothing_of_others(
    three: tuple[Client, Client, Client], tmp_path: Path
) -> None:
    first, second, leaving = three
    evaluated = tmp_path / "evaluated"
    # A source that notes each of its evaluations, as an asset's may be slow or random.
    first.run(f"""
def noted(batches):
    with open({str(evaluated)!r}, "a") as file:
        file.write("x")
    yield from batches
spark.conf.set("spark.sql.shuffle.partitions", "5")
mine = spark.range(0, 10, 1, 1).mapInArrow(noted, "id long").cache()
mine.createOrReplaceTempView("mine")
answer = mine.count()
""")
    assert evaluated.read_text() == "x"
    persistent = "answer = spark.sparkContext._jsc.getPersistentRDDs().size()"
    before = first.run(persistent)
    leaving.run("spark.range(7).cache().count()\nspark.range(1).createOrReplaceTempView('gone')")
    assert first.run(persistent) == before + 1

    leaving.kill()

    wait_until(lambda: first.run(persistent) == before)
    assert first.run("answer = mine.count() + spark.table('mine').count()") == 20
    assert evaluated.read_text() == "x"
    assert first.run("answer = spark.conf.get('spark.sql.shuffle.partitions')") == "5"
    assert not second.run("answer = spark.catalog.tableExists('gone')")
    first.run("mine.unpersist()\nspark.catalog.dropTempView('mine')")


def test_a_process_that_stops_its_session_ends_nobody_elses(
    pair: tuple[Client, Client], start: Callable[[], Client]
) -> None:
    first, _ = pair
    stopping = start()
    stopping.attach("stopping")
    stopping.answer()

    assert stopping.run("spark.stop()\nanswer = spark.sparkContext._jsc is None")

    assert first.run("answer = spark.range(3).count()") == 3


@pytest.fixture
def alone() -> Iterator[tuple[Client, Path]]:
    """A process in a home of its own, so with a driver of its own."""
    with new_home() as directory:
        client = Client(directory)
        yield client, directory
        client.kill()


def test_a_driver_that_died_is_started_again_and_ends_when_idle(
    alone: tuple[Client, Path], drivers: set[int]
) -> None:
    first, home = alone
    first.attach("first")
    died = first.answer()
    drivers.add(died)
    os.kill(died, signal.SIGKILL)
    # Its connections end with the last of its threads, after the process counts as ended.
    wait_until(lambda: not first.run("answer = attachment.is_alive()"))
    assert not exists(died)
    assert list((home / "deltaweave").glob("*.sock"))  # nobody has tidied up

    first.attach("first", idle_seconds=1)
    anew = first.answer()
    drivers.add(anew)

    assert anew != died
    assert first.run("answer = spark.range(3).count()") == 3
    first.kill()
    wait_until(lambda: not exists(anew))
    assert not list((home / "deltaweave").glob("*.sock"))


@pytest.mark.parametrize(
    "changed",
    [
        {"spark.driver.memory": "5g"},  # a setting
        {"spark.jars": "/a/library.jar"},  # a jar
    ],
)
def test_another_configuration_is_another_driver(changed: dict[str, str]) -> None:
    assert fingerprint(TINY_DATA) == fingerprint(dict(TINY_DATA))
    assert fingerprint({**TINY_DATA, **changed}) != fingerprint(TINY_DATA)


def test_jars_and_surroundings_that_changed_ask_for_another_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jar = tmp_path / "library.jar"
    jar.write_text("one")
    conf = {"spark.jars": str(jar)}
    seen = [fingerprint(conf)]

    jar.write_text("another")
    seen.append(fingerprint(conf))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")  # the JVM reads it once
    seen.append(fingerprint(conf))
    monkeypatch.chdir(tmp_path)  # another code location
    seen.append(fingerprint(conf))
    monkeypatch.setenv("DAGSTER_RUN_ID", "1")  # of one run: no reason

    assert len(set(seen)) == 4
    assert fingerprint(conf) == seen[-1]


def test_a_run_that_cannot_attach_says_why_and_goes_on(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tempfile.TemporaryDirectory() as home:
        monkeypatch.setenv("XDG_RUNTIME_DIR", home)
        (Path(home) / "deltaweave").mkdir()
        (Path(home) / "deltaweave").chmod(0o755)
        with pytest.raises(WarmDriverError, match="must be a directory that you own"):
            address({})
        settings = {
            key: spark.conf.get(key)
            for key in ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
        }
        resource = SparkResource(spark_config=settings, warm=True)

        with caplog.at_level(logging.WARNING):
            session = resource.session

    assert session.sparkContext is spark.sparkContext
    assert "Could not attach to a warm Spark driver" in caplog.text
    assert "must be a directory that you own" in caplog.text


class Departed(io.StringIO):
    """What a client sends before it leaves; what it is answered is dropped."""

    def write(self, text: str) -> int:
        self.answer = json.loads(text)
        return len(text)


def test_what_cannot_be_taken_back_from_a_process_keeps_nothing_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broadcasts = tmp_path / "broadcasts"
    broadcasts.mkdir()

    def fails(self: Keeper, name: str) -> None:
        raise Py4JError("an error of the cache manager")

    monkeypatch.setattr(Keeper, "uncache", fails)
    client = Departed(f"{broadcasts}\n")
    with socket.socket() as listener, ThreadPoolExecutor(1) as thread:
        keeper = Keeper(spark, listener, 60, 60, clients=2)
        thread.submit(keeper.serve_client, "departed", client).result()
    assert not broadcasts.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", client.answer["port"])).close()
