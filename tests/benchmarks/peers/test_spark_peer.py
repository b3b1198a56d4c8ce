from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.peers import peer_program
from benchmarks.peers.peer import PeerError
from benchmarks.peers.spark_peer import SparkPeer, SqlUpsert, session_conf
from tests.benchmarks.fake_python import write_python


class Fake(SparkPeer):
    def conf(self, tables: Path) -> Mapping[str, str]:
        return {}

    def upsert(self, columns: Sequence[str], keys: Sequence[str]) -> SqlUpsert:
        raise NotImplementedError


PEER = Fake("fake", "Fake", "pyspark==4.1.1", "org.fake:runtime:1.2.0")


def test_a_peers_session_has_the_engines_settings_and_none_of_deltas(spark: SparkSession) -> None:
    conf = session_conf(spark)

    ours = spark.sparkContext.getConf()
    for name in ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions"):
        assert conf[name] == ours.get(name)
    assert "delta" not in str(conf).lower()


def test_only_an_environment_made_with_the_pinned_spark_is_complete(tmp_path: Path) -> None:
    environment = PEER.environment(tmp_path)
    assert environment.name == "fake-env"
    assert not PEER.is_made(environment)

    environment.mkdir()
    (environment / "deltaweave-made-it-with").write_text("pyspark==4.1.0")
    assert not PEER.is_made(environment)

    (environment / "deltaweave-made-it-with").write_text(PEER.pyspark)
    assert PEER.is_made(environment)


def test_a_process_answers_jobs_and_reports_which_of_them_failed(tmp_path: Path) -> None:
    write_python(
        PEER,
        tmp_path,
        """
        echo "$4 $3" >&2
        echo '{"spark": "4.1.1"}'
        read job; echo "$job" >&2; echo '{"run_seconds": [1.5]}'
        read job; echo '{"error": "ValueError: no such table"}'
        """,
    )

    with PEER.process({"a": "b"}, tmp_path) as process:
        assert process.versions == {"fake": "1.2.0", "spark": "4.1.1"}
        assert process.do({"kind": "steps"}) == {"run_seconds": [1.5]}
        with pytest.raises(PeerError, match=r"^Fake failed: ValueError: no such table \(see .*log"):
            process.do({"kind": "merge"})

    assert (tmp_path / "fake.log").read_text().splitlines() == [
        ' {"a": "b", "spark.jars.packages": "org.fake:runtime:1.2.0"}',
        '{"kind": "steps"}',
    ]


def test_a_process_that_ends_early_is_an_error_that_names_its_log(
    tmp_path: Path,
) -> None:
    thrown = 'Exception in thread "main" java.lang.RuntimeException: [not found]'
    write_python(PEER, tmp_path, f"echo 'starting' >&2; echo '{thrown}' >&2; exit 1")
    log = tmp_path / "fake.log"

    with (
        pytest.raises(PeerError, match=r"Fake's process ended early; its output is in ") as raised,
        PEER.process({}, tmp_path),
    ):
        pass

    assert str(raised.value).endswith(f"{log}. {thrown}")


def test_a_process_that_ends_between_jobs_is_an_error(tmp_path: Path) -> None:
    # Its end of the pipe is closed before the job is written: writing fails, and so would closing.
    write_python(PEER, tmp_path, 'exec <&-; echo \'{"spark": "4.1.1"}\'')

    with (
        pytest.raises(PeerError, match=r"ended early; its output is in .*log\.$"),
        PEER.process({}, tmp_path) as process,
    ):
        process.do({"kind": "steps"})


def test_the_program_needs_nothing_but_the_standard_library_and_pyspark() -> None:
    # -S: no installed package is found.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", peer_program.__file__, "{}"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stderr.endswith("ModuleNotFoundError: No module named 'pyspark'\n")
