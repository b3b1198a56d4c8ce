"""Column mapping by name and by id: columns renamed, dropped, nested, evolved, and partitions."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    insert_all,
    update,
    update_all,
)

BY_NAME = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}

CASES = (
    MergeCase(
        name="mapping_by_name_with_a_new_column_of_an_odd_name",
        target=[(1, 10), (2, 20)],
        properties=BY_NAME,
        source=[(1, 100, "x"), (3, 300, "y")],
        source_schema="k INT, v INT, `a new, (odd) name` STRING",
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "x"),  # updated
            (2, 20, None),
            (3, 300, "y"),  # inserted
        ],
    ),
    MergeCase(
        name="mapping_by_id_with_a_new_column_and_a_new_field",
        target=[(1, (10,)), (2, (20,))],
        target_schema="k INT, a STRUCT<b: INT>",
        properties=BY_ID,
        source=[(1, (100, "x"), 7), (3, (300, "y"), 8)],
        source_schema="k INT, a STRUCT<b: INT, c: STRING>, extra INT",
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, (100, "x"), 7),  # updated
            (2, (20, None), None),
            (3, (300, "y"), 8),  # inserted
        ],
    ),
    MergeCase(
        name="partition_column_renamed",
        target=[(1, 10, "a"), (2, 20, "b")],
        target_schema="k INT, v INT, old STRING",
        partition_by=("old",),
        properties=BY_NAME,
        setup=("ALTER TABLE {target} RENAME COLUMN old TO `the part`",),
        source=[(1, 100, "b"), (3, 300, "c d")],
        source_schema="k INT, v INT, `the part` STRING",
        clauses=(update_all(), insert_all(), by_source_delete("t.`the part` = 'b'")),
        expected=[
            (1, 100, "b"),  # updated, and moved; (2, 20, 'b') deleted
            (3, 300, "c d"),  # inserted
        ],
    ),
    MergeCase(
        name="names_of_two_columns_swapped_by_renaming",
        target=[(1, 10, 11), (2, 20, 21)],
        target_schema="k INT, a INT, b INT",
        properties=BY_NAME,
        setup=(
            "ALTER TABLE {target} RENAME COLUMN a TO c",
            "ALTER TABLE {target} RENAME COLUMN b TO a",
            "ALTER TABLE {target} RENAME COLUMN c TO b",
        ),
        source=[(1, 100)],
        clauses=(update({"a": "s.v"}), by_source_update({"b": "-1"})),
        expected=[
            (1, 10, 100),  # updated: a was b
            (2, -1, 21),  # updated, not matched by source
        ],
    ),
    MergeCase(
        name="nested_field_renamed_and_another_dropped",
        target=[(1, (10, "x", 1)), (2, (20, "y", 2))],
        target_schema="k INT, a STRUCT<old: INT, gone: STRING, c: INT>",
        properties=BY_NAME,
        setup=(
            "ALTER TABLE {target} RENAME COLUMN a.old TO b",
            "ALTER TABLE {target} DROP COLUMN a.gone",
        ),
        source=[(1, (5, 100)), (3, (7, 300))],
        source_schema="k INT, a STRUCT<c: INT, b: INT>",
        clauses=(update({"a.b": "s.a.b"}), insert_all()),
        expected=[
            (1, (100, 1)),  # updated
            (2, (20, 2)),
            (3, (300, 7)),  # inserted, fields by name
        ],
    ),
    MergeCase(
        name="dropped_column_comes_back_by_evolution",
        target=[(1, 10, "gone"), (2, 20, "gone")],
        target_schema="k INT, v INT, note STRING",
        properties=BY_NAME,
        setup=("ALTER TABLE {target} DROP COLUMN note",),
        source=[(1, 100, "x")],
        source_schema="k INT, v INT, note STRING",
        with_schema_evolution=True,
        clauses=(update_all(),),
        expected=[
            (1, 100, "x"),  # updated
            (2, 20, None),  # copied; the new column has nothing of the dropped one
        ],
    ),
    MergeCase(
        name="mapping_by_name_of_structs_in_arrays_and_maps",
        target=[(1, [(10,)], {"m": (11,)}), (2, None, {})],
        target_schema="k INT, a ARRAY<STRUCT<`b c`: INT>>, m MAP<STRING, STRUCT<`d.e`: INT>>",
        properties=BY_NAME,
        source=[(1, [(100,), None], {"n": (110,)}), (3, [], None)],
        source_schema="k INT, a ARRAY<STRUCT<`b c`: INT>>, m MAP<STRING, STRUCT<`d.e`: INT>>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, [(100,), None], {"n": (110,)}),  # updated
            (2, None, {}),
            (3, [], None),  # inserted
        ],
    ),
    MergeCase(
        name="mapping_switched_on_after_the_files_were_written",
        target=[(1, 10), (2, 20)],
        setup=(
            "ALTER TABLE {target} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
            "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')",
            "ALTER TABLE {target} RENAME COLUMN v TO w",
        ),
        source=[(1, 100), (3, 300)],
        source_schema="k INT, w INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100),  # updated
            (2, 20),
            (3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="mapping_by_id_in_a_clustered_table",
        target=[(1, 10), (2, 20)],
        cluster_by=("k",),
        properties=BY_ID,
        source=[(1, 100), (3, 300)],
        clauses=(update_all(), insert_all(), by_source_update({"v": "0"})),
        expected=[
            (1, 100),  # updated
            (2, 0),  # updated, not matched by source
            (3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="mapping_by_name_with_check_default_and_generated_column",
        target=[(1, 10)],
        target_ddl="k INT, v INT DEFAULT 7, twice INT GENERATED ALWAYS AS (v * 2)",
        properties={**BY_NAME, "delta.feature.allowColumnDefaults": "supported"},
        setup=("ALTER TABLE {target} ADD CONSTRAINT positive CHECK (v > 0)",),
        source=[(1, 100), (2, 200)],
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
        expected=[
            (1, 100, 200),  # updated
            (2, 7, 14),  # inserted
        ],
    ),
)
