"""The settings of a merge: the `spark.deltaweave.merge.*` keys, read and checked once."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from deltaweave._verdict import YES, Verdict, no
from deltaweave.delta.jvm import number_setting
from deltaweave.engine import limits

ON_DRIVER = "spark.deltaweave.merge.onDriver"
"""Whether small merges run on the driver, with few Spark jobs or none: `auto`, the default (if the
source is known or estimated to be small), `true` (if it turns out to be small) or `false`. With
`false`, Spark also finds all matches; else a driver with a local master looks them up for merges of
up to 4 million source rows, which Spark writes."""

REWRITE_IN_PLACE = "spark.deltaweave.merge.rewriteInPlace"
"""Whether files are rewritten in place: `auto` (if there is enough to copy), `true` or `false`."""

MAX_MARKED_FRACTION = "spark.deltaweave.merge.maxMarkedFraction"
"""A file is rewritten if more than this fraction of its rows would be marked; 1 always marks."""

MAX_COMMIT_ATTEMPTS = "spark.deltaweave.merge.maxCommitAttempts"
"""Maximum commits that a merge tries; 1 never tries again.

Where it is not set, a merge runs `limits.DEFAULT_RUNS` times at most, and tries to commit what it
wrote more often.
"""


@dataclass(frozen=True)
class MergeSettings:
    """The settings of one merge.

    Attributes:
        local: The value of `ON_DRIVER`.
        in_place: The value of `REWRITE_IN_PLACE`.
        max_marked_fraction: The value of `MAX_MARKED_FRACTION`, or its default.
        max_commits: Maximum calls of Delta's commit.
        max_runs: Maximum runs of the merge.
    """

    local: str
    in_place: str
    max_marked_fraction: float
    max_commits: int
    max_runs: int

    @classmethod
    def read(cls, spark: SparkSession) -> MergeSettings:
        """Read the settings of a session.

        Raises:
            SettingError: A setting that is a number holds something else.
        """
        commits = int(number_setting(spark, MAX_COMMIT_ATTEMPTS, otherwise=-1, is_whole=True))
        default = limits.DEFAULT_MAX_MARKED_FRACTION
        return cls(
            local=(spark.conf.get(ON_DRIVER, "auto") or "auto").lower(),
            in_place=(spark.conf.get(REWRITE_IN_PLACE, "auto") or "auto").strip().lower(),
            max_marked_fraction=number_setting(spark, MAX_MARKED_FRACTION, otherwise=default),
            max_commits=limits.DEFAULT_COMMIT_ATTEMPTS if commits < 0 else commits,
            max_runs=limits.DEFAULT_RUNS if commits < 0 else commits,
        )

    @property
    def allows_local(self) -> Verdict:
        """Whether the local backend may work; any value other than the three means `false`."""
        return YES if self.local in ("auto", "true") else no(f"{ON_DRIVER} is {self.local}")

    @property
    def allows_in_place(self) -> Verdict:
        """Whether files may be copied in place; any value other than the three means `false`."""
        allowed = self.in_place in ("auto", "true")
        return YES if allowed else no(f"{REWRITE_IN_PLACE} is {self.in_place}")
