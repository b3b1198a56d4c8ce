"""Everything that touches Delta's JVM classes; py4j is imported in this package and nowhere else.

- `jvm`: calls to the JVM, and its errors as ours.
- `releases`: what differs between releases of Spark and Delta.
- `log`: the transaction log: versions, their files, the files' statistics.
- `statement`: what a MERGE statement means, by Delta's own analyzer.
- `commit`: transactions: what they read, write and commit.
- `scan`: how source and target rows are read.
- `files`: data files and deletion vectors that the engine makes by itself.
"""
