"""Cases of MERGE: what is merged, how it is timed, and what is reported.

- `case`: defines a case: a target, and the statements that are timed.
- `cases`: the list of cases.
- `further_tables`: the tables of the cases that Delta's benchmark does not have.
- `many_files`: a table whose log names many files.
- `built_in`: runs Delta's own MERGE.
- `runner`: times the engine and its peers in turn, and compares their rows.
- `profile`: where the time of a merge goes, by `spark_work`, `jvm_calls` and `parquet_limit`.
- `profile_report`: profiles on the screen and as JSON.
- `report`: the results on the screen, as JSON and as a chart.
"""

from __future__ import annotations

from benchmarks.merge.built_in import builtin_merge
from benchmarks.merge.case import UPSERT, Case, Merges, Statement
from benchmarks.merge.profile import Profile, measure_profile
from benchmarks.merge.profile_report import profiles_table, write_profiles
from benchmarks.merge.report import Report, empty_report, environment_of
from benchmarks.merge.runner import ENGINE, Run, Side, checksums, fingerprint, measure

__all__ = [
    "ENGINE",
    "UPSERT",
    "Case",
    "Merges",
    "Profile",
    "Report",
    "Run",
    "Side",
    "Statement",
    "builtin_merge",
    "checksums",
    "empty_report",
    "environment_of",
    "fingerprint",
    "measure",
    "measure_profile",
    "profiles_table",
    "write_profiles",
]
