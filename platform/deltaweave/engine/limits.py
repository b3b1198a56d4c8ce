"""Every threshold of the engine, and why it has this value.

Modules read them as `limits.NAME`. What tasks on executors need is in `tasks`, which imports
nothing of deltaweave.
"""

from __future__ import annotations

# Source: collected keys and broadcasts.

# Decoded bytes of a source's rows, counted when it is materialized or its keys are collected. Above
# it, a hint keeps Spark from broadcasting them. A 2 GiB driver holds the hash table with ease.
MAX_BROADCAST_SOURCE_BYTES = 64 * 1024 * 1024

# Rows of a source whose keys are collected: some 30 MB of strings for each key column.
MAX_COLLECTED_ROWS = 500_000

# Rows of a source whose keys are numbers and dates alone: they take as much memory as the strings.
# It needs a source whose rows are counted.
MAX_COLLECTED_NUMBERS = 4_000_000

# Bytes of the keys of a source, decoded, that are collected. Beyond it, ranges of them are known:
# few keys are so long, and Python's objects for them take as much again.
MAX_COLLECTED_KEY_BYTES = 64 * 1024 * 1024

# Decoded bytes that the tasks of a query send before it is known whether its rows are too many. A
# 2 GiB driver holds them. Without a count of rows, source rows of up to 1,342 bytes, and keys and
# pairs of up to 805 bytes, come by one job; wider ones need a second job.
MAX_BYTES_SENT = 384 * 1024 * 1024

# Ranges that stand for the values of a key column whose values are too many to be collected.
MAX_KEY_RANGES = 4_096

# Values of a key that the scan's filter lists. Spark passes so many to Parquet one by one, and of
# more only the lowest and the highest.
MAX_PUSHED_VALUES = 10


# Key index: bloom filters of files.

# Keys of a source that ask the index. Among more random keys, some lie in every file.
MAX_INDEXED_KEYS = 10_000

# Versions of the index between two searches for files that other writers added. A search lists all
# files, and a file without a filter is only read needlessly.
INDEX_CATCH_UP_INTERVAL = 10

# Versions of the index after which it is rewritten: filters of files that have left the table go,
# and its small files are compacted.
INDEX_REWRITE_INTERVAL = 50

# Files of the index after it was rewritten.
INDEX_FILES = 8


# Find: pairs of target rows and source rows.

# Pairs that come to the driver. With the name of its file, a pair takes some 200 bytes on its way.
MAX_PAIRS_ON_DRIVER = 500_000

# Bytes of these pairs, decoded: with names of files of 100 characters, and keys of as many.
MAX_PAIR_BYTES_ON_DRIVER = 128 * 1024 * 1024

# Maximum pairs that the driver finds by keys that match once at most: their numbers take
# some 20 bytes each. Keys of numbers are collected up to as many.
MAX_PAIRS_BY_KEYS = 4_000_000

# Numbers between the lowest and the highest key, for a table with an entry of 4 bytes for each, in
# which a key is found five times as fast as among sorted ones.
MAX_NUMBERS_BETWEEN_KEYS = 32_000_000

# Bytes of pairs that travel with a task; Spark refuses 128 MiB (spark.rpc.message.maxSize).
MAX_BYTES_IN_A_TASK = 32 * 1024 * 1024

# Pairs that are broadcast: source row and clause of so many take some 64 MB as a hash table.
MAX_BROADCAST_PAIRS = 1_000_000

# Target rows that an error about ambiguous matches shows.
MAX_SHOWN_AMBIGUOUS_ROWS = 10

MAX_SHOWN_ERRORS = 5
"""The most classes of errors that a warning names."""


# Write: files and rows.

# Decoded bytes of source rows that one new file holds at most, roughly. Parquet stores them in half
# or less, the size that Spark reads as one partition (spark.sql.files.maxPartitionBytes).
TARGET_FILE_BYTES = 256 * 1024 * 1024

# Decoded bytes of source rows from which on another file is written: a core needs about a second
# for them.
MIN_FILE_BYTES = 4 * 1024 * 1024

# Files that are written in parallel although one would hold all rows, so that cores are at work.
MAX_SMALL_FILES = 4

# Fraction of a file's rows. If more would be marked as deleted, the file is rewritten: this writes
# at most a quarter of the rows that are written anyway, and saves each later scan four fifths.
DEFAULT_MAX_MARKED_FRACTION = 0.8

# Bytes of files to rewrite in place. Below it, starting Python costs more than Spark needs for the
# rows.
MIN_BYTES_IN_PLACE = 16 * 1024 * 1024

# Fraction of a file's rows. If more change, bringing them to Python costs more than Spark needs to
# rewrite all rows.
MAX_CHANGED_FRACTION_IN_PLACE = 0.25

# Bytes of files that a task rewrites in place at least, unless cores would be idle. To start, it
# takes a tenth of a second, in which 8 MB are rewritten.
MIN_BYTES_OF_TASK_IN_PLACE = 32 * 1024 * 1024

# Tasks that rewrite files in place; more files share tasks.
MAX_TASKS_IN_PLACE = 1_000

# Files whose rows are told apart by one number: its expression has a branch for each file.
MAX_NUMBERED_FILES = 32

# Changed rows whose numbers are broadcast: some 64 MB as a hash table.
MAX_BROADCAST_NUMBERS = 2_000_000


# The local backend: no Spark jobs except those that evaluate the source and the clauses.

# Rows of the source. Above it, Spark's executors share the work, and the driver would hold up
# other merges of the same process. An upsert of 260,000 rows of 20 columns into one file took 0.6
# of Spark's time on two cores.
MAX_LOCAL_ROWS = 300_000

# Bytes of the source's rows, and bytes of the candidate files. 64 MiB of Parquet decode to about
# 500 MB of rows, and each thread holds a row group; two cores rewrite them in about a second, in
# which Spark plans and starts its jobs.
MAX_LOCAL_BYTES = 64 * 1024 * 1024

# Bytes of a source that was not measured, as Spark estimates them: of Parquet files, which hold up
# to some ten times as many bytes of rows.
MAX_LOCAL_ESTIMATED_BYTES = 32 * 1024 * 1024

# Rows of the candidate files: two cores read the keys of so many in a quarter of a second.
MAX_LOCAL_TARGET_ROWS = 5_000_000

# Rows that deletion vectors mark in files with matches: their numbers take 8 bytes each, and are
# copied some five times where such a file is rewritten.
MAX_MARKED_ROWS = 5_000_000

# Maximum bytes of target rows whose keys are all among the source's, with indexes: memory holds
# them until they are joined, and the join copies them.
MAX_LOCAL_POSSIBLE_BYTES = 256 * 1024 * 1024

# Multiplier for bytes and rows of target files, here and below, where Spark's tasks are threads of
# the driver and no more than its own: such a master has no further cores and no further disk. On
# two cores, upserts into 28 files of 7.2 million rows took 0.4 to 0.5 (with vectors) and 0.5 to 0.6
# (copy on write) of Spark's time.
LOCAL_MASTER_FACTOR = 16

# Maximum rows whose keys one thread holds in memory, and their bytes: 16 ms are needed to prepare
# the source's keys for each batch.
MAX_LOCAL_BATCH_ROWS = 1_000_000
MAX_LOCAL_BATCH_BYTES = 64 * 1024 * 1024

# Columns of a target that clauses read: which of them an update keeps is asked column by column.
MAX_LOCAL_COLUMNS = 200

# Bytes of new rows in memory, at most: source rows that match several rows are there several times.
MAX_LOCAL_NEW_BYTES = 256 * 1024 * 1024

# Partitions that get new rows: each is a file of its own, of some milliseconds.
MAX_LOCAL_PARTITIONS = 100

# Fraction of a file's rows. If more change in a file of 8 MiB or more, its new rows go to files of
# their own, which several threads write, and one copies the rest.
MAX_LOCAL_CHANGED_FRACTION = 0.8

# Threads that read and write files. Where it rewrites, each holds 128 MiB of rows, which become a
# row group (tasks/batches), and a batch of 16 MiB up to three times (tasks/batches).
MAX_LOCAL_THREADS = 4


# Commit.

# Commits that a merge tries. Each lost one means that another writer has committed. On an object
# store, of several writers that commit the same output again, one wins each time.
DEFAULT_COMMIT_ATTEMPTS = 50

# Runs of a merge, from its source on; each has one or more of these commits. The waits between them
# are some 20 s in all. It holds where no number of attempts is set.
DEFAULT_RUNS = 10

# Bytes of the source and of the files that other commits brought, which a merge may read while it
# holds the lock of a table on a local disk: a job of a second.
MAX_BYTES_UNDER_LOCK = 16 * 1024 * 1024

# Scanned files in which other commits marked rows meanwhile: reading and uniting their deletion
# vectors takes some ten calls of the JVM each, and of more files the merge is rather done again.
MAX_UNITED_VECTORS = 200

# Bytes of files that came with other commits and are scanned for a match, before the merge's output
# is committed after them. Doing the merge again would scan them too, and rewrite all.
MAX_LATER_BYTES = 256 * 1024 * 1024


# Advice of `explain`.

# Files of a table. A table of no more files has little to gain if some are skipped.
MIN_FILES_FOR_ADVICE = 10

# Rows written for each source row. Above it, deletion vectors are recommended.
HIGH_WRITE_AMPLIFICATION = 10
