"""Cases of MERGE: what is merged, how it is timed, and what is reported.

- `case`: defines a case: a target, and the statements that are timed.
- `cases`: the list of cases.
- `further_tables`: the tables of the cases that Delta's benchmark does not have.
- `many_files`: a table whose log names many files.
- `runner`: times the engine, Delta's own MERGE and peers in turn, and compares their rows.
- `report`: the engine beside Delta's own MERGE.
- `profile`: where the time of a merge goes, by `spark_work` and `parquet_limit`.
"""
