"""How the target lies on storage: partitions, files, paths, names, statistics, features."""

from __future__ import annotations

import datetime as dt

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

PARTITIONED = "k INT, v INT, p STRING"
ODD = ("a b", "a=b", "a%20b", "a/b", "é\u4e2d", "#?*:[x]", "{y}+&", None, "", "__NULL__", ".")
BY_NAME = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}

CASES = (
    MergeCase(
        name="partitions_that_hold_no_match_stay",
        target=[(1, 10, "a"), (2, 20, "b"), (3, 30, "c")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(2, 200, "b"), (4, 400, "d")],
        source_schema=PARTITIONED,
        on="t.k = s.k AND t.p = s.p",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 10, "a"),
            (2, 200, "b"),  # updated
            (3, 30, "c"),
            (4, 400, "d"),  # inserted, in a new partition
        ],
    ),
    MergeCase(
        name="odd_partition_values",
        target=[(i, i, value) for i, value in enumerate(ODD)],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(i, 100 + i) for i in range(0, len(ODD), 2)],
        clauses=(update({"v": "s.v"}), by_source_update({"v": "-1"}, "t.k = 1")),
        expected=[
            (i, -1 if i == 1 else 100 + i if i % 2 == 0 else i, value or None)
            for i, value in enumerate(ODD)  # every second updated; '' is null as a partition value
        ],
    ),
    MergeCase(
        name="update_of_the_partition_column_moves_the_row",
        target=[(1, 10, "a"), (2, 20, "a"), (3, 30, "b")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 100)],
        clauses=(update({"p": "'b'", "v": "s.v"}),),
        expected=[
            (1, 100, "b"),  # updated, from partition a to b
            (2, 20, "a"),
            (3, 30, "b"),
        ],
    ),
    MergeCase(
        name="delete_of_a_whole_partition",
        target=[(1, 10, "a"), (2, 20, "a"), (3, 30, "b")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 0), (2, 0)],
        clauses=(delete(),),
        expected=[(3, 30, "b")],
    ),
    MergeCase(
        name="partitioned_by_date_and_another_column",
        target=[
            (1, 10, dt.date(2024, 1, 1), True),
            (2, 20, dt.date(2024, 1, 2), False),
            (3, 30, None, None),
        ],
        target_schema="k INT, v INT, day DATE, flag BOOLEAN",
        partition_by=("day", "flag"),
        source=[
            (1, 100, dt.date(2024, 1, 1), True),
            (3, 300, None, None),
            (4, 400, dt.date(2024, 2, 29), None),
        ],
        source_schema="k INT, v INT, day DATE, flag BOOLEAN",
        on="t.k = s.k AND t.day <=> s.day",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, dt.date(2024, 1, 1), True),  # updated
            (2, 20, dt.date(2024, 1, 2), False),
            (3, 300, None, None),  # updated
            (4, 400, dt.date(2024, 2, 29), None),  # inserted
        ],
    ),
    MergeCase(
        name="partitioned_by_timestamp",
        target=[(1, 10, dt.datetime(2024, 1, 1, 6, 0, 0, 5)), (2, 20, None)],
        target_schema="k INT, v INT, p TIMESTAMP",
        partition_by=("p",),
        source=[(1, 100), (2, 200)],
        clauses=(update({"v": "s.v"}),),
        expected=[(1, 100, dt.datetime(2024, 1, 1, 6, 0, 0, 5)), (2, 200, None)],  # updated
    ),
    MergeCase(
        name="partition_conjunct_with_a_literal",
        target=[(1, 10, "a"), (1, 11, "b")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 100, "b"), (2, 200, "b")],
        source_schema=PARTITIONED,
        on="t.k = s.k AND t.p = 'b'",
        clauses=(update_all(), insert_all()),
        expected=[(1, 10, "a"), (1, 100, "b"), (2, 200, "b")],
    ),
    MergeCase(
        name="rows_of_three_of_five_files",
        target=[(i, i) for i in range(10)],
        files=5,
        source=[(0, 100), (5, 105), (9, 109), (11, 111)],
        clauses=(update_all("s.v <> 105"), delete(), insert_all()),
        expected=[(0, 100), *[(i, i) for i in (1, 2, 3, 4, 6, 7, 8)], (9, 109), (11, 111)],
    ),
    MergeCase(
        name="path_with_spaces_and_special_characters",
        folder="my tables%20 é+=#&,;'~(1)",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(1, 100), (4, 400)],
        clauses=(update_all(), insert_all(), by_source_delete("t.k = 2")),
        expected=[(1, 100), (3, 30), (4, 400)],
    ),
    MergeCase(
        name="path_and_partition_values_with_special_characters",
        folder="a b%3D",
        target=[(1, 10, "x y/z"), (2, 20, "%41=é")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        properties={"delta.randomizeFilePrefixes": "true"},
        source=[(2, 200)],
        clauses=(update({"v": "s.v"}), by_source_update({"v": "0"})),
        expected=[(1, 0, "x y/z"), (2, 200, "%41=é")],  # both updated
    ),
    MergeCase(
        name="clustered_table",
        target=[(1, 10), (2, 20)],
        cluster_by=("k",),
        source=[(1, 100), (3, 300)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (2, 20), (3, 300)],
    ),
    MergeCase(
        name="table_without_statistics",
        target=[(1, 10), (2, 20), (3, 30), (4, 40)],
        files=2,
        properties={"delta.dataSkippingNumIndexedCols": "0"},
        source=[(1, 100), (5, 500)],
        clauses=(update_all(), insert_all(), by_source_delete("t.k = 2")),
        expected=[(1, 100), (3, 30), (4, 40), (5, 500)],
    ),
    MergeCase(
        name="key_without_statistics",
        target=[(10, 1), (20, 2)],
        target_schema="v INT, k INT",
        files=2,
        properties={"delta.dataSkippingNumIndexedCols": "1"},
        source=[(1, 100), (3, 300)],
        clauses=(update_all(), insert_all()),
        expected=[(100, 1), (20, 2), (300, 3)],
    ),
    MergeCase(
        name="column_younger_than_a_file",
        target=[(1, 10), (2, 20)],
        setup=(
            "ALTER TABLE {target} ADD COLUMNS (w STRING)",
            "INSERT INTO {target} VALUES (3, 30, 'new')",
        ),
        source=[(1, 100, "x"), (3, 300, "y"), (4, 400, None)],
        source_schema="k INT, v INT, w STRING",
        clauses=(update_all("t.w IS NULL OR t.w = 'new'"), insert_all()),
        expected=[
            (1, 100, "x"),  # updated
            (2, 20, None),  # copied, the column null
            (3, 300, "y"),  # updated
            (4, 400, None),  # inserted
        ],
    ),
    MergeCase(
        name="key_column_younger_than_a_file",
        target=[(10,), (20,)],
        target_schema="v INT",
        setup=(
            "ALTER TABLE {target} ADD COLUMNS (k INT)",
            "INSERT INTO {target} VALUES (30, 3)",
        ),
        source=[(None, 100), (3, 300)],
        on="t.k <=> s.k",
        clauses=(update({"v": "t.v + s.v"}),),
        expected=[
            (110, None),  # (10, null) updated
            (120, None),  # (20, null) updated
            (330, 3),  # (30, 3) updated
        ],
        why="the old file has neither the column nor its null count",
    ),
    MergeCase(
        name="column_names_that_need_back_quotes",
        target=[(1, 10, "x"), (2, 20, "y")],
        target_schema="`a.k` INT, `my value` INT, `a;b-c` STRING",
        properties=BY_NAME,
        source=[(1, 100, "z"), (3, 300, "w")],
        source_schema="`a.k` INT, `my value` INT, `a;b-c` STRING",
        on="t.`a.k` = s.`a.k`",
        clauses=(
            update({"`my value`": "s.`my value` + t.`my value`"}, "t.`a;b-c` = 'x'"),
            insert_all(),
        ),
        expected=[
            (1, 110, "x"),  # updated
            (2, 20, "y"),
            (3, 300, "w"),  # inserted
        ],
    ),
    MergeCase(
        name="columns_named_like_those_the_engine_adds",
        target=[(1, 10, 11, 12), (2, 20, 21, 22)],
        target_schema="k INT, _clause_ INT, _source_row_ INT, _matches_ INT",
        source=[(1, 100, 101, 102), (3, 300, 301, 302)],
        source_schema="k INT, _clause_ INT, _source_row_ INT, _matches_ INT",
        on="t.k = s.k AND t._clause_ < s._clause_",
        clauses=(
            update_all("t._source_row_ < s._source_row_"),
            insert_all(),
            by_source_update({"_matches_": "t._clause_ + t._matches_"}),
        ),
        expected=[
            (1, 100, 101, 102),  # updated
            (2, 20, 21, 42),  # updated, not matched by source
            (3, 300, 301, 302),  # inserted
        ],
    ),
    MergeCase(
        name="source_columns_named_like_those_the_engine_adds",
        target=[(1, 10), (2, 20)],
        source=[(1, 100, 5), (3, 300, 6)],
        source_schema="_source_row_id_ INT, _source_row_ INT, _clause_ INT",
        on="t.k = s._source_row_id_",
        clauses=(
            update({"v": "s._source_row_"}, "s._clause_ = 5"),
            insert({"k": "s._source_row_id_", "v": "s._clause_"}),
        ),
        expected=[
            (1, 100),  # updated
            (2, 20),
            (3, 6),  # inserted
        ],
    ),
    MergeCase(
        name="columns_renamed_and_dropped",
        target=[(1, "gone", 10), (2, "gone", 20)],
        target_schema="old INT, dropped STRING, v INT",
        properties=BY_NAME,
        setup=(
            "ALTER TABLE {target} RENAME COLUMN old TO k",
            "ALTER TABLE {target} DROP COLUMN dropped",
            "ALTER TABLE {target} ADD COLUMNS (dropped INT)",
        ),
        source=[(1, 100, 7), (3, 300, 8)],
        source_schema="k INT, v INT, dropped INT",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            (1, 100, None),  # updated; the new column has nothing of the dropped one
            (2, 20, None),
            (3, 300, 8),  # inserted
        ],
    ),
    MergeCase(
        name="column_mapping_by_id_in_a_partitioned_table_with_nested_fields",
        target=[(1, (10, "x"), "a"), (2, (20, "y"), "b c")],
        target_schema="k INT, a STRUCT<`b.c`: INT, d: STRING>, `p p` STRING",
        partition_by=("p p",),
        properties=BY_ID,
        source=[(1, 100), (2, 200)],
        clauses=(update({"a.`b.c`": "s.v"}, "t.`p p` = 'b c'"),),
        expected=[
            (1, (10, "x"), "a"),
            (2, (200, "y"), "b c"),  # updated
        ],
    ),
    MergeCase(
        name="files_with_old_deletion_vectors",
        target=[(1, 10), (2, 20), (3, 30), (4, 40)],
        properties={"delta.enableDeletionVectors": "true"},
        setup=(
            "DELETE FROM {target} WHERE k = 2",
            "ALTER TABLE {target} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
        ),
        source=[(1, 100), (2, 200)],
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100),  # updated
            (2, 200),  # inserted: the old (2, 20) was deleted
            (3, 30),
            (4, 40),
        ],
        why="the file's row count still counts the deleted row",
    ),
    MergeCase(
        name="table_read_from_a_checkpoint",
        target=[(1, 10), (2, 20)],
        properties={"delta.checkpointInterval": "2"},
        setup=(
            "INSERT INTO {target} VALUES (3, 30)",
            "INSERT INTO {target} VALUES (4, 40)",
            "INSERT INTO {target} VALUES (5, 50)",
        ),
        source=[(3, 300), (5, 500)],
        clauses=(update_all(), by_source_delete("t.k = 1")),
        expected=[(2, 20), (3, 300), (4, 40), (5, 500)],
    ),
    MergeCase(
        name="case_sensitive_session_with_columns_that_differ_in_case",
        target=[(1, 10, 11), (2, 20, 21)],
        target_schema="k INT, v INT, w INT",
        source=[(1, 100, 101), (3, 300, 301)],
        source_schema="k INT, v INT, V INT",
        conf={"spark.sql.caseSensitive": "true"},
        clauses=(update({"v": "s.V", "w": "s.v"}),),
        expected=[
            (1, 101, 100),  # updated
            (2, 20, 21),
        ],
    ),
)
