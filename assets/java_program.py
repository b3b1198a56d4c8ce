"""Java programs, each a process of its own: their jars, their start, their end."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

KAFKA = "4.3.1"
"""The release of Apache Kafka: the one that Debezium 3.7 is built with."""

# Kafka 4 logs by SLF4J 1, and ships none of its providers as a dependency.
_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

# Small, and quick to start rather than to run for long.
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_JVM += ["-Dorg.apache.logging.log4j.level=WARN"]

_SECONDS_TO_END = 15


class JavaProgramError(RuntimeError):
    """A program's jars could not be fetched, or it did not start; the message holds its output."""


def class_path(packages: Sequence[str]) -> str:
    """Return the class path of packages and all their dependencies.

    They are fetched once, by the Ivy that pyspark ships, so that no Maven is needed; not into
    Spark's own cache, whose jars are of other releases.

    Args:
        packages: Each as `group:name:version`.

    Raises:
        JavaProgramError: They cannot be fetched, or there is no pyspark.
    """
    packages = [*packages, _LOGGING]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltaweave" / "ivy"
    cache.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    known = cache / f"{name}.classpath"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would spoil each other's downloads
        if known.exists():
            jars = known.read_text().strip()
            if all(Path(jar).exists() for jar in jars.split(os.pathsep)):
                return jars
        module, fetched = cache / f"{name}.xml", cache / f"{name}.fetched"
        module.write_text(_ivy_module(packages))
        arguments = ["-warn", "-cache", str(cache), "-ivy", str(module), "-confs", "default"]
        ran = subprocess.run(
            [_java(), "-jar", str(_ivy()), *arguments, "-cachepath", str(fetched)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            raise JavaProgramError(
                f"{', '.join(packages)} could not be fetched from Maven Central "
                f"(exit {ran.returncode}):\n{_last_lines(ran.stdout)}"
            )
        fetched.rename(known)
        return known.read_text().strip()


def run_to_its_end(main: str, arguments: Sequence[str], jars: str) -> None:
    """Run a program that ends by itself.

    Raises:
        JavaProgramError: It failed.
    """
    command = [_java(), *_JVM, "-cp", jars, main, *arguments]
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ran.returncode != 0:
        raise JavaProgramError(f"{main} failed (exit {ran.returncode}):\n{_last_lines(ran.stdout)}")


@contextmanager
def running(
    main: str,
    arguments: Sequence[str],
    jars: str,
    *,
    log: Path,
    answers: Callable[[], bool],
    seconds: float = 60,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program, with a process group of its own, until the context is left.

    It ends with this process, too, however that ends.

    Args:
        main: Its class.
        arguments: Of its command line.
        jars: Its class path.
        log: File to which it writes, at the end of what is in it.
        answers: Whether it does what it is there for.
        seconds: How long it may take until it answers.
        environment: Its environment variables; by default those of this process.

    Raises:
        JavaProgramError: It ended, or does not answer in time.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [_java(), *_JVM, "-cp", jars, main, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    watch = _watch_over(process.pid)
    try:
        deadline = time.monotonic() + seconds
        while not answers():
            if process.poll() is not None:
                raise JavaProgramError(
                    f"{main} ended (exit {process.returncode}):\n{_last_lines(log.read_text())}"
                )
            if time.monotonic() > deadline:
                raise JavaProgramError(
                    f"{main} does not answer within {seconds:.0f} s:\n"
                    f"{_last_lines(log.read_text())}"
                )
            time.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Only now: until here the watch must do what this process may no longer come to.
        watch.kill()
        watch.communicate()
        process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


# Waits for the end of its input, which this process holds open until it ends, even by SIGKILL.
_WATCH = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def _watch_over(group: int) -> subprocess.Popen[bytes]:
    """Start a process that kills a process group when this process has ended."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JavaProgramError("Jars are fetched by pyspark's Ivy, and there is no pyspark.")
    [jar] = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    return jar


def _ivy_module(packages: Sequence[str]) -> str:
    lines = ['<ivy-module version="2.0"><info organisation="deltaweave" module="program"/>']
    lines.append("<dependencies>")
    for package in packages:
        group, name, version = package.split(":")
        lines.append(f'<dependency org="{group}" name="{name}" rev="{version}" conf="default"/>')
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])
