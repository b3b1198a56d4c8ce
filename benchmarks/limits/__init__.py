"""The largest merges that the engine must complete or refuse, and the memory that they take.

- `limit`: defines a limit: a table and a merge, of any size.
- `catalog`: the limits.
- `wide_statements`: many clauses, many columns.
- `many_files`: a log of many files, many partitions.
- `many_rows`: a large source, many pairs, a large target.
- `decoded_bytes`: text that repeats, long keys, files whose first rows are small.
- `measure`: writes a limit's table, starts its merge, and reports.
- `measured_merge`: the program that merges in a separate process, and measures its memory.
"""
