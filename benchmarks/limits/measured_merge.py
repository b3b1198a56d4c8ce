"""A program that runs one merge in its own Spark, and prints its time and memory as a JSON line.

It is started as a module and reads the merge as JSON from the standard input: `statement`, `conf`,
and `gc_log`, the file to which the conf makes the driver's JVM log garbage collections. Spark's
output goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.limits.memory import heap_peaks_mib, sampled_memory


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Run the merge, and return what was measured."""
    import deltaweave

    spark = deltaweave.local_session(**job["conf"])
    measured: dict[str, Any] = {}
    started = time.perf_counter()
    with sampled_memory() as memory:
        try:
            result = deltaweave.merge(spark, job["statement"])
        except Exception as error:
            measured = {"error": str(error), "error_class": type(error).__name__}
        else:
            measured = {"metrics": dict(result.metrics), "strategy": result.strategy}
        measured["merge_seconds"] = round(time.perf_counter() - started, 1)
    before, after = heap_peaks_mib(Path(job["gc_log"]))
    return {
        **measured,
        "heap_peak_mib": before,
        "heap_after_gc_mib": after,
        "driver_mib": memory.driver_mib,
        "executors_mib": memory.executors_mib,
        "python_mib": memory.python_mib,
    }


if __name__ == "__main__":
    answers = os.dup(1)
    os.dup2(2, 1)  # the JVM's output goes to the standard error
    answer = main(json.load(sys.stdin))
    with os.fdopen(answers, "w", encoding="utf-8") as output:
        output.write(json.dumps(answer) + "\n")
