"""Java programs end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from assets.java_program import running

# py4j's own server, which needs no jars but Spark's and runs until it is ended.
STARTED = """
import sys, time
from pathlib import Path
from assets.java_program import running

jars, log = sys.argv[1:]
with running("py4j.GatewayServer", ["0"], jars, log=Path(log), answers=lambda: True) as program:
    print(program.pid, flush=True)
    time.sleep(60)
"""


def jars() -> str:
    [jar] = (Path(str(pyspark.__file__)).parent / "jars").glob("py4j-*.jar")
    return str(jar)


def has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # Ended, and nobody has waited for it: whoever adopted it may never do.
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True
    )
    return state.stdout.startswith("Z") or not state.stdout.strip()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_a_process_that_is_killed(tmp_path: Path, by: signal.Signals) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", STARTED, jars(), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    program = int(started.stdout.readline())
    assert not has_ended(program)

    started.send_signal(by)  # a signal that Python's contexts do not see
    started.wait()

    deadline = time.monotonic() + 20
    while not has_ended(program):
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)


def test_a_program_ends_with_its_context(tmp_path: Path) -> None:
    with running(
        "py4j.GatewayServer", ["0"], jars(), log=tmp_path / "log", answers=lambda: True
    ) as program:
        assert program.poll() is None
    assert program.poll() is not None
