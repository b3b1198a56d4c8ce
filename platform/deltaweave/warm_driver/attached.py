"""PySpark's objects in a process that is attached to a warm driver."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


class AttachedContext(SparkContext):
    """A SparkContext that ends only for this process.

    Attributes:
        job_tag: The tag of all jobs of this process.
    """

    job_tag: str

    def stop(self) -> None:
        """Detach from the driver, which continues. The next session starts another Spark."""
        self._jsc: Any = None  # what PySpark would stop
        super().stop()
        forget_gateway()

    def cancelAllJobs(self) -> None:  # noqa: N802 - PySpark's name, and what it calls on Ctrl-C
        """Cancel the jobs of this process."""
        self.cancelJobsWithTag(self.job_tag)


def attached_session(port: int, secret: str, job_tag: str) -> SparkSession:
    """Attach to the session behind the keeper's py4j server, as this process's PySpark session.

    Args:
        port: The py4j server's port on loopback.
        secret: The token of that server.
        job_tag: The tag that the keeper gave to this process's jobs.
    """
    # PySpark reads these to find a running JVM. Child processes must not see the token.
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    java = gateway.jvm.org.apache.spark
    lent = java.sql.classic.SparkSession.getActiveSession().get()
    java_context = java.api.java.JavaSparkContext.fromSparkContext(lent.sparkContext())
    context = AttachedContext(
        gateway=gateway,
        jsc=java_context,
        conf=SparkConf(_jconf=java_context.getConf()),
        # Spark reuses Python workers with the same environment. Workers that imported other code
        # than this process must not run its functions.
        environment={"DELTAWEAVE_CODE": code_stamp()},
    )
    context.job_tag = job_tag
    return SparkSession(context, lent)


def forget_gateway() -> None:
    """Make PySpark start its own JVM for the next session."""
    SparkContext._gateway = SparkContext._jvm = None


def code_stamp() -> str:
    """Hash the code of this process: its own files and the installed packages."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    digest = hashlib.sha256()
    for path in (*libraries, *sorted(_own_files(libraries))):
        if os.path.exists(path):
            found = os.stat(path)  # of a directory: a package was installed or removed
            digest.update(f"{path} {found.st_mtime_ns} {found.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _own_files(libraries: tuple[str, ...]) -> Iterator[str]:
    """Yield Python files of all imported packages and modules that are not libraries."""
    for name in {name.partition(".")[0] for name in list(sys.modules)}:
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            continue
        for root in [*vars(module).get("__path__", ()), vars(module).get("__file__")]:
            if not root or root.startswith(libraries):
                continue
            yield from map(str, Path(root).rglob("*.py")) if os.path.isdir(root) else [root]
