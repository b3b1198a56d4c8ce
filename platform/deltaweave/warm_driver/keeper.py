"""The process that keeps a Spark driver warm and serves it to other processes.

`client.attach` starts it with its settings as one line of JSON on stdin, and it prints one line
when the driver runs. Clients connect to a Unix socket that only the owner can open. Each gets its
own py4j server on loopback, with its own token, and keeps the connection as long as it lives. When
the connection ends, for whatever reason, all that the client had ends.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TextIO

from deltaweave._session import local_session
from deltaweave.warm_driver.address import check_peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("deltaweave.warm_driver")

# A driver that serves many processes shares its cores among them, and must not keep UI data of all
# of them.
LONG_LIVED = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "50",
}

_SECONDS_BETWEEN_LOOKS = 1

# Setting with the client's name, in its session and in those that Spark clones from it.
_CLIENT = "spark.deltaweave.warmDriver.client"


@dataclass
class Keeper:
    """A driver, its clients, and the reasons to end it.

    Attributes:
        spark: The driver's first session, which no client gets.
        listener: The socket that clients connect to.
        idle_seconds: How long a driver without clients is kept; the last client sets it.
        orphaned_seconds: The same time, if all processes that started clients have ended.
        clients: The number of current clients.
        owners: Process ids of the processes that started clients, e.g. Dagster's code server.
        idle_since: When the last client left, on the monotonic clock.
        is_to_stop: Whether the driver ends, since it was asked to.
    """

    spark: SparkSession
    listener: socket.socket
    idle_seconds: float
    orphaned_seconds: float
    clients: int = 0
    owners: set[int] = field(default_factory=set)
    idle_since: float = field(default_factory=time.monotonic)
    is_to_stop: bool = False
    _count: int = 0
    _lock: Lock = field(default_factory=Lock)

    def serve(self) -> str:
        """Accept clients until there is a reason to end, and return the reason."""
        self.listener.settimeout(_SECONDS_BETWEEN_LOOKS)
        while True:
            with suppress(TimeoutError):
                connection, _ = self.listener.accept()
                with self._lock:
                    self.clients += 1
                Thread(target=self.attend, args=(connection,), daemon=True).start()
            reason = self._reason_to_end()
            if reason is not None:
                return reason

    def _reason_to_end(self) -> str | None:
        if not self.is_running():
            return "the JVM or its Spark context has ended"
        with self._lock:
            if self.is_to_stop:
                return "it was asked to stop"
            if self.clients:
                return None
            idle = time.monotonic() - self.idle_since
            self.owners = {owner for owner in self.owners if _exists(owner)}
            if idle > self.idle_seconds:
                return f"no client for {self.idle_seconds:g} s"
            if idle > self.orphaned_seconds and not self.owners:
                return "the processes that started its clients have ended"
        return None

    def is_running(self) -> bool:
        """Return whether the driver's SparkContext still runs."""
        context: Any = self.spark.sparkContext
        try:
            return context._gateway.proc.poll() is None and not context._jsc.sc().isStopped()
        except Exception:  # py4j cannot reach the JVM, in one of several ways
            return False

    def attend(self, connection: socket.socket) -> None:
        """Serve one client, from its first line to its end, in its own thread."""
        try:
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                check_peer(connection)
                hello = json.loads(stream.readline())
                if "stop" in hello:
                    _answer(stream, self._stop(is_forced=hello["stop"] == "also in use"))
                    return
                with self._lock:
                    self._count += 1
                    self.owners.add(hello["owner"])
                    self.idle_seconds = hello["idle_seconds"]
                    name = f"{hello['name']} #{self._count}"
                self.serve_client(name, stream)
        except Exception:
            logger.exception("A client ended with an error.")
        finally:
            with self._lock:
                self.clients -= 1
                self.idle_since = time.monotonic()

    def _stop(self, *, is_forced: bool) -> dict[str, Any]:
        """Stop soon, unless the driver is in use; the answer to who asked for it."""
        with self._lock:
            others = self.clients - 1  # who asks is one of them
            self.is_to_stop = is_forced or not others
            return {"pid": os.getpid(), "clients": others, "stops": self.is_to_stop}

    def serve_client(self, name: str, stream: TextIO) -> None:
        """Lend a session to a client, until its connection ends."""
        context: Any = self.spark.sparkContext
        try:
            session = self.spark.newSession()
            session.conf.set(_CLIENT, name)
            self._lend_to_this_thread(name, session)
            server = context._jvm.org.apache.spark.api.python.Py4JServer(context._jsc.sc().conf())
            server.start()
        except Exception as problem:
            _answer(stream, {"error": str(problem)})
            raise
        directory = ""
        try:
            gateway = {"port": server.getListeningPort(), "secret": server.secret()}
            _answer(stream, {**gateway, "pid": os.getpid(), "name": name})
            logger.info("%s attached.", name)
            directory = stream.readline().strip()  # where its broadcast variables are
            stream.read()  # until it ends
        finally:
            logger.info("%s left.", name)
            with _going_on("its server"):
                server.shutdown()
            self._take_back(name, session)
            if directory:
                shutil.rmtree(directory, ignore_errors=True)
            with self._lock:
                alone = self.clients == 1
            if alone:  # Spark frees shuffles, checkpoints and broadcasts when Java collects them
                with _going_on("what Java collects"):
                    context._jvm.System.gc()

    def _lend_to_this_thread(self, name: str, session: Any) -> None:
        """Set what all threads of the client's py4j server inherit from this thread."""
        context: Any = self.spark.sparkContext
        sessions: Any = context._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(session._jsparkSession)
        sessions.setDefaultSession(self.spark._jsparkSession)
        # Delta remembers a table's log for an hour, even if the table was removed meanwhile.
        context._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        # By the group, jobs can be cancelled before they start. The tag remains if the client sets
        # its own group.
        context.setLocalProperty("spark.jobGroup.id", name)
        context.addJobTag(name)
        context.setInterruptOnCancel(True)
        context.setLocalProperty("spark.scheduler.pool", name)

    def _take_back(self, name: str, session: SparkSession) -> None:
        """End all that a client had; a failure does not keep the rest from ending."""
        context: Any = self.spark.sparkContext
        with _going_on("its jobs"):
            context._jsc.sc().cancelJobGroupAndFutureJobs(name)
        with _going_on("its jobs"):
            context.cancelJobsWithTag(name)
        queries: list[StreamingQuery] = []
        with _going_on("its streams"):
            queries = session.streams.active
        for query in queries:
            with _going_on("its stream"):
                query.stop()
        # Tables are cached for all sessions: the next client would read old rows.
        with _going_on("what it cached"):
            self.uncache(name)
        with _going_on("the default session"):
            sessions: Any = context._jvm.org.apache.spark.sql.classic.SparkSession
            sessions.setDefaultSession(self.spark._jsparkSession)

    def uncache(self, name: str) -> None:
        """Release what a client cached and, without other clients, what no client owns."""
        session: Any = self.spark._jsparkSession
        manager = session.sharedState().cacheManager()
        field = manager.getClass().getDeclaredField("cachedData")
        field.setAccessible(True)
        kept = field.get(manager).iterator()
        with self._lock:
            owners = {name} if self.clients > 1 else {name, ""}
        while kept.hasNext():
            cached = kept.next()
            planned_in = cached.cachedRepresentation().cacheBuilder().cachedPlan().session()
            if planned_in.conf().get(_CLIENT, "") in owners:
                manager.uncacheQuery(session, cached.plan(), False, False)


@contextmanager
def _going_on(of_what: str) -> Iterator[None]:
    """Run a block that takes something back from a client; its errors are only logged."""
    try:
        yield
    except Exception:
        logger.exception("Could not take back from a client: %s.", of_what)


def _answer(stream: TextIO, answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _exists(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> None:
    """Start the driver, serve it, and end with it."""
    settings = json.loads(sys.stdin.readline())
    # For the socket and all that Spark writes: it spills rows into /tmp/blockmgr-….
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    began = time.monotonic()
    spark = local_session(**{**LONG_LIVED, **settings["spark_conf"]})
    path = Path(settings["socket"])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        inode = path.stat().st_ino
        listener.listen(64)
        logger.info("Driver started in %.1f s.", time.monotonic() - began)
        print("ready", flush=True)
        os.dup2(2, 1)  # nobody reads stdout from here on
        keeper = Keeper(spark, listener, settings["idle_seconds"], settings["orphaned_seconds"])
        try:
            reason = keeper.serve()
        finally:
            if path.exists() and path.stat().st_ino == inode:  # not that of a later keeper
                path.unlink()
    logger.info("Ends: %s.", reason)
    with suppress(Exception):  # the JVM may be the one that ended
        spark.stop()


if __name__ == "__main__":
    main()
