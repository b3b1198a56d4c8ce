"""Sources that are queries of more shapes: unions, groups, versions, expressions before MERGE."""

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
        name="source_is_a_union_with_the_target",
        target=TARGET,
        source=[(3, 300)],
        sql="MERGE INTO {target} t USING (SELECT k, v * 10 AS v FROM {target} WHERE k = 1 "
        "UNION ALL SELECT * FROM {source}) s ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_distinct",
        target=TARGET,
        source=[*SOURCE, *SOURCE],
        sql="MERGE INTO {target} t USING (SELECT DISTINCT * FROM {source}) s ON t.k = s.k "
        + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_grouped_and_filtered_by_its_groups",
        target=TARGET,
        source=[(1, 40), (1, 60), (3, 300), (9, 1)],
        sql="MERGE INTO {target} t USING (SELECT k, CAST(sum(v) AS INT) AS v FROM {source} "
        "GROUP BY k HAVING sum(v) >= 100) s ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_exploded_from_an_array",
        target=TARGET,
        source=[([1, 3], 100)],
        source_schema="keys ARRAY<INT>, v INT",
        sql="MERGE INTO {target} t USING (SELECT k, v * k AS v FROM {source} "
        "LATERAL VIEW explode(keys) AS k) s ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_a_common_table_expression_before_the_statement",
        target=TARGET,
        source=SOURCE,
        sql="WITH fresh AS (SELECT * FROM {source}) MERGE INTO {target} t USING fresh s "
        "ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_is_what_two_versions_of_the_target_differ_by",
        target=[*TARGET, (4, 40)],
        target_by="name",
        setup=("UPDATE {target} SET v = 11 WHERE k = 1", "DELETE FROM {target} WHERE k = 2"),
        sql="MERGE INTO {target} t USING (SELECT * FROM {target} VERSION AS OF 0 EXCEPT "
        "SELECT * FROM {target} VERSION AS OF 2) s ON t.k = s.k " + UPSERT,
        expected=[
            (1, 10),  # (1, 11) updated
            (2, 20),  # inserted
            (4, 40),
        ],
    ),
    MergeCase(
        name="source_has_no_row_by_a_false_condition",
        target=TARGET,
        source=SOURCE,
        sql="MERGE INTO {target} t USING (SELECT * FROM {source} WHERE false) s ON t.k = s.k "
        + UPSERT
        + " WHEN NOT MATCHED BY SOURCE AND t.k = 2 THEN DELETE",
        expected=[(1, 10)],  # (2, 20) deleted
    ),
    MergeCase(
        name="source_gives_nulls_without_a_type",
        target=TARGET,
        source=SOURCE,
        sql="MERGE INTO {target} t USING (SELECT k, NULL AS v FROM {source}) s ON t.k = s.k "
        + UPSERT,
        expected=[
            (1, None),  # (1, 10) updated
            (2, 20),
            (3, None),  # inserted
        ],
    ),
    MergeCase(
        name="source_is_a_difference_of_queries",
        target=TARGET,
        source=[*SOURCE, (2, 20)],
        sql="MERGE INTO {target} t USING (SELECT * FROM {source} EXCEPT SELECT * FROM {target}) s "
        "ON t.k = s.k " + UPSERT,
        expected=UPSERTED,
    ),
    MergeCase(
        name="source_holds_types_that_the_target_cannot",
        target=TARGET,
        source=SOURCE,
        sql="MERGE INTO {target} t USING (SELECT k, v, INTERVAL '1' DAY AS i FROM {source}) s "
        "ON t.k = s.k WHEN MATCHED AND s.i > INTERVAL '1' HOUR THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *",
        expected=UPSERTED,
    ),
)
