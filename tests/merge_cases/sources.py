"""What a statement may say as source and target: queries, views, VALUES, the target itself."""

from __future__ import annotations

from tests.merge_cases.case import MergeCase

TARGET = [(1, 10), (2, 20)]
SOURCE = [(1, 100), (3, 300)]
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
UPSERTED = [
    (1, 100),  # (1, 10) updated
    (2, 20),
    (3, 300),  # inserted
]

CASES = (
    MergeCase(
        name="source_is_a_subquery",
        target=TARGET,
        source=[(1, 50), (3, 150), (9, 900)],
        sql="""
            MERGE INTO {target} t USING (SELECT k, v * 2 AS v FROM {source} WHERE k < 9) s
            ON t.k = s.k """
        + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_a_common_table_expression",
        target=TARGET,
        source=[*SOURCE, (3, 299)],
        sql="""
            MERGE INTO {target} t USING (
              WITH newest AS (SELECT k, max(v) AS v FROM {source} GROUP BY k)
              SELECT * FROM newest
            ) s ON t.k = s.k """
        + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_values",
        target=TARGET,
        sql="""
            MERGE INTO {target} t USING (VALUES (1, 100), (3, 300)) s ON t.k = s.col1
            WHEN MATCHED THEN UPDATE SET v = s.col2
            WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.col1, s.col2)""",
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_the_newest_row_of_each_key_by_a_window",
        target=TARGET,
        source=[(1, 99, 1), (1, 100, 2), (3, 300, 1)],
        source_schema="k INT, v INT, sequence INT",
        sql="""
            MERGE INTO {target} t USING (
              SELECT * FROM {source}
              QUALIFY row_number() OVER (PARTITION BY k ORDER BY sequence DESC) = 1
            ) s ON t.k = s.k """
        + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_ordered_and_limited",
        target=TARGET,
        source=[(3, 300), (1, 100), (9, 900)],
        sql="MERGE INTO {target} t USING (SELECT * FROM {source} ORDER BY k LIMIT 2) s "
        "ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_joins_the_target",
        target=TARGET,
        source=[(1, 90), (3, 300)],
        sql="""
            MERGE INTO {target} t USING (
              SELECT s.k, s.v + coalesce(old.v, 0) AS v
              FROM {source} s LEFT JOIN {target} old ON old.k = s.k
            ) s ON t.k = s.k """
        + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="self_merge",
        target=TARGET,
        sql="""
            MERGE INTO {target} t USING {target} s ON t.k = s.k + 1
            WHEN MATCHED THEN UPDATE SET v = s.v
            WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k + 1, s.v)
            WHEN NOT MATCHED BY SOURCE THEN DELETE""",
        expected=[
            (2, 10),  # (2, 20) updated from (1, 10)
            (3, 20),  # inserted from (2, 20)
        ],  # (1, 10) deleted
    ),
    MergeCase(
        name="insert_only_self_merge",
        target=TARGET,
        sql="MERGE INTO {target} t USING {target} s ON t.k = s.k + 1 "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k + 1, s.v)",
        expected=[*TARGET, (3, 20)],  # inserted from (2, 20)
    ),
    MergeCase(
        name="source_is_an_older_version_of_the_target",
        target=TARGET,
        setup=("DELETE FROM {target} WHERE k = 2", "UPDATE {target} SET v = 11"),
        sql="MERGE INTO {target} t USING (SELECT * FROM {target} VERSION AS OF 0) s "
        "ON t.k = s.k " + UPSERT,
        expected=[
            (1, 10),  # (1, 11) updated
            (2, 20),  # inserted
        ],
    ),
    MergeCase(
        name="source_has_columns_the_target_has_not",
        target=TARGET,
        source=[(1, "x", 100), (3, "y", 300)],
        source_schema="k INT, extra STRING, v INT",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_says_the_columns_in_another_order",
        target=TARGET,
        source=[(100, 1), (300, 3)],
        source_schema="v INT, k INT",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
        why="stars go by name",
    ),
    MergeCase(
        name="source_with_a_broadcast_hint",
        target=TARGET,
        source=SOURCE,
        sql="MERGE INTO {target} t USING (SELECT /*+ BROADCAST(x) */ * FROM {source} x) s "
        "ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_of_a_table_function",
        target=TARGET,
        sql="""
            MERGE INTO {target} t USING (SELECT CAST(id AS INT) AS k FROM range(1, 4)) s
            ON t.k = s.k
            WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, 0)""",
        expected=[*TARGET, (3, 0)],  # inserted
    ),
    MergeCase(
        name="source_of_random_values_is_read_once",
        target=[(1, 0, 0), (2, 0, 0)],
        target_schema="k INT, v INT, same INT",
        source=[(1, 0), (3, 0)],
        sql="""
            MERGE INTO {target} t USING (SELECT k, v, rand() AS r FROM {source}) s ON t.k = s.k
            WHEN MATCHED AND s.r < 0.5 THEN UPDATE SET v = 1, same = CAST(s.r < 0.5 AS INT)
            WHEN MATCHED THEN UPDATE SET v = 1, same = CAST(s.r >= 0.5 AS INT)
            WHEN NOT MATCHED AND s.r < 0.5 THEN
              INSERT (k, v, same) VALUES (s.k, 1, CAST(s.r < 0.5 AS INT))
            WHEN NOT MATCHED THEN
              INSERT (k, v, same) VALUES (s.k, 1, CAST(s.r >= 0.5 AS INT))""",
        expected=[
            (1, 1, 1),  # updated: the value decided by is the value written
            (2, 0, 0),
            (3, 1, 1),  # inserted
        ],
    ),
    MergeCase(
        name="names_in_any_case",
        target=TARGET,
        source=SOURCE,
        sql="""
            merge into {target} as T using {source} as S on t.K = s.k
            when matched then update set T.V = S.v
            when not matched then insert (K, V) values (S.K, S.V)""",
        expected=UPSERTED,
    ),
    MergeCase(
        name="target_by_name_without_aliases",
        target=TARGET,
        source=SOURCE,
        target_by="name",
        sql="""
            MERGE INTO {target} USING {source} ON {target}.k = {source}.k
            WHEN MATCHED THEN UPDATE SET {target}.v = {source}.v
            WHEN NOT MATCHED THEN INSERT *""",
        expected=UPSERTED,
    ),
    MergeCase(
        name="target_by_name_with_all_kinds_of_clauses",
        target=[*TARGET, (4, 40)],
        source=SOURCE,
        target_by="name",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        + UPSERT
        + " WHEN NOT MATCHED BY SOURCE AND t.k = 4 THEN DELETE",
        expected=UPSERTED,  # (4, 40) deleted
    ),
    MergeCase(
        name="target_by_a_view_of_it",
        target=TARGET,
        source=SOURCE,
        target_by="view",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)",
        expected=UPSERTED,
    ),
    MergeCase(
        name="text_with_comments_and_line_breaks",
        target=TARGET,
        source=SOURCE,
        sql="""
            -- what is new
            MERGE INTO {target} AS t /* the target */
            USING {source} AS s
            ON t.k = s.k -- by key
            WHEN MATCHED AND s.v <> -1 THEN UPDATE SET *
            WHEN NOT MATCHED BY TARGET THEN INSERT *
        """,
        expected=UPSERTED,
    ),
)
