"""Commands with a screen of their own, in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

COMMAND = """
import logging, os, sys
from pathlib import Path
from rich.progress import Progress
from assets.console_command import run_with_console

def noise(of):
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("dagster").debug("%s: logged", of)
    print(of + ": printed")
    os.write(2, (of + ": written\\n").encode())  # as a JVM

def command(console):
    with console.status("Landing"):
        noise("status")
    with Progress(console=console) as progress:
        progress.add_task("Merging", total=1)
        noise("bar")
    console.print("Merged.")

sys.exit(run_with_console(Path(sys.argv[1]), command))
"""


def on_a_terminal(*command: str) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; its exit code and what the terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.close(ours)
    return process.wait(), shown.decode()


def test_what_a_command_logs_does_not_run_through_its_bars(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    code, shown = on_a_terminal(sys.executable, "-c", COMMAND, str(log))
    assert code == 0, shown
    assert "Landing" in shown
    assert "Merging" in shown
    assert "Merged." in shown
    noise = [f"{of}: {how}" for of in ("status", "bar") for how in ("logged", "printed", "written")]
    assert [each for each in noise if each in shown] == []
    assert [each for each in noise if each not in log.read_text()] == []
