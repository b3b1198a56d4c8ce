"""Where `make demo` runs: what each place sets, and that it ends with the command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from assets import demo_environments
from deltaweave._session import local_conf
from resources import environments

ROOT = Path(__file__).parents[2]


def test_an_unknown_place_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_environments.main(["moon", "true"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "ON is 'moon'; known are local, cluster, object_store.\n")


def test_on_this_machine_nothing_is_set() -> None:
    with demo_environments.on_this_machine() as variables:
        assert variables == {}


@pytest.mark.parametrize(
    ("variables", "root", "conf"),
    [
        (
            demo_environments.cluster_variables("spark://127.0.0.1:1", Path("/lake/cluster")),
            "/lake/cluster/tables",
            {
                "spark.master": "spark://127.0.0.1:1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            },
        ),
        (
            demo_environments.store_variables("http://127.0.0.1:1", "some key"),
            "s3a://lake/tables",
            {
                "spark.master": "local[*]",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1",
            },
        ),
    ],
    ids=["cluster", "object_store"],
)
def test_a_place_is_an_environment_that_only_this_machine_reaches(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], root: str, conf: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    chosen = environments.resources()

    assert chosen["io_manager"].root == root
    assert conf.items() <= local_conf(chosen["spark"].spark_config).items()


def test_the_store_keeps_its_objects_and_asks_for_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DELTAWEAVE_LAKE", str(tmp_path))
    for again in (False, True):
        with demo_environments.on_an_object_store() as variables:
            url = f"{variables['AWS_ENDPOINT_URL']}/lake/a%20b"
            key = {"Authorization": f"AWS4 Credential={variables['AWS_ACCESS_KEY_ID']}/x"}
            if not again:
                urlopen(Request(url, b"rows", key, method="PUT"))
            with pytest.raises(HTTPError, match="403"):
                urlopen(url)
            assert urlopen(Request(url, headers=key)).read() == b"rows"
        with pytest.raises(URLError, match="refused"):
            urlopen(url)


def test_the_store_says_at_once_that_a_client_may_send_what_it_puts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Amazon's clients ask before they send, and wait for seconds where nothing is answered."""
    monkeypatch.setenv("DELTAWEAVE_LAKE", str(tmp_path))
    with demo_environments.on_an_object_store() as variables:
        host, port = variables["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            asked = b"PUT /lake/a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
            client.sendall(asked)
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")


@pytest.mark.minutes
def test_an_environment_ends_with_its_command_and_has_its_exit_code(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['DELTAWEAVE_DEMO_ON']); sys.exit(7)"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "assets.demo_environments",
            "object_store",
            sys.executable,
            "-c",
            code,
        ],
        cwd=ROOT,
        env={**os.environ, "DELTAWEAVE_LAKE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 7, ran.stderr
    first, place, last = ran.stdout.splitlines()
    assert first.startswith("Started the object_store: http://127.0.0.1:")
    assert (place, last) == ("object_store", "Stopped the object_store.")
