"""Names: in any case, with dots, spaces and back quotes, of views, and of the catalog."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

TARGET = [(1, 10), (2, 20)]
SOURCE = [(1, 100), (3, 300)]
UPSERTED = [
    (1, 100),  # (1, 10) updated
    (2, 20),
    (3, 300),  # inserted
]
UPSERT = (
    "MERGE INTO {target} t USING {source} s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
)
# And so does every reader of a file with deletion vectors, as of Delta 4.4.
TAKEN_FOR_SPARKS_OWN = "built-in MERGE with vectors takes the column for Spark's own"
SENSITIVE = {"spark.sql.caseSensitive": "true"}

CASES = (
    MergeCase(
        name="star_under_case_sensitivity_finds_names_of_the_same_case_alone",
        target=TARGET,
        source=SOURCE,
        source_schema="k INT, V INT",
        conf=SENSITIVE,
        clauses=(update_all(),),
        error="DELTA_MERGE_UNRESOLVED_EXPRESSION",
    ),
    MergeCase(
        name="wrong_case_under_case_sensitivity_is_an_error",
        target=TARGET,
        source=SOURCE,
        conf=SENSITIVE,
        clauses=(update({"V": "s.v"}),),
        error="DELTA_MERGE_UNRESOLVED_EXPRESSION",
    ),
    MergeCase(
        name="nested_names_in_any_case",
        target=[(1, (10, (11,))), (2, (20, (21,)))],
        target_schema="k INT, Aa STRUCT<Bb: INT, Cc: STRUCT<Dd: INT>>",
        source=[(1, 100)],
        source_schema="K INT, V INT",
        clauses=(
            update({"AA.cC.dD": "S.v + T.aA.bB"}),
            by_source_update({"aa.BB": "T.AA.CC.DD"}),
        ),
        expected=[
            (1, (10, (110,))),  # updated
            (2, (21, (21,))),  # updated, not matched by source
        ],
    ),
    MergeCase(
        name="source_columns_that_differ_in_case_alone_are_ambiguous",
        target=TARGET,
        source=[(1, 100, 101)],
        source_schema="k INT, v INT, V INT",
        clauses=(update({"v": "s.v"}),),
        error="AMBIGUOUS_REFERENCE",
    ),
    MergeCase(
        name="nested_fields_with_dots_and_spaces",
        target=[(1, (10, 11)), (2, (20, 21))],
        target_schema="k INT, `x.y` STRUCT<`p.q`: INT, `r s`: INT>",
        properties={"delta.columnMapping.mode": "name"},
        source=[(1, (100, 110)), (3, (300, 310))],
        source_schema="k INT, `x.y` STRUCT<`p.q`: INT, `r s`: INT>",
        clauses=(
            update({"`x.y`.`p.q`": "s.`x.y`.`r s`", "t.`x.y`.`r s`": "t.`x.y`.`p.q`"}),
            insert_all(),
        ),
        expected=[
            (1, (110, 10)),  # updated
            (2, (20, 21)),
            (3, (300, 310)),  # inserted
        ],
    ),
    MergeCase(
        name="column_named_like_sparks_own_metadata",
        target=[(1, 10), (2, 20), (3, 30)],
        target_schema="k INT, _metadata INT",
        source=[(1, 100), (2, 0), (4, 400)],
        source_schema="k INT, _metadata INT",
        on="t.k = s.k AND t._metadata > 0",
        files=2,
        clauses=(
            delete("s._metadata = 0"),
            update_all(),
            insert_all(),
            by_source_update({"_metadata": "t._metadata + 1"}, "t._metadata = 30"),
        ),
        without_vectors=TAKEN_FOR_SPARKS_OWN,
        expected=[
            (1, 100),  # updated
            (3, 31),  # updated, not matched by source; (2, 20) deleted
            (4, 400),  # inserted
        ],
    ),
    MergeCase(
        name="struct_named_and_made_like_sparks_own_metadata",
        target=[(("a", 1), 10), (("b", 2), 20)],
        target_schema="_metadata STRUCT<file_path: STRING, row_index: BIGINT>, v INT",
        source=[(("b", 2), 200), (("c", 3), 300)],
        source_schema="_metadata STRUCT<file_path: STRING, row_index: BIGINT>, v INT",
        on="t._metadata.file_path = s._metadata.file_path",
        files=2,
        clauses=(update_all(), insert_all()),
        without_vectors=TAKEN_FOR_SPARKS_OWN,
        expected=[
            (("a", 1), 10),
            (("b", 2), 200),  # updated
            (("c", 3), 300),  # inserted
        ],
    ),
    MergeCase(
        name="words_of_the_language_as_columns",
        target=[(1, 10, 11), (2, 20, 21)],
        target_schema="key INT, `when` INT, `matched` INT",
        source=[(1, 100, 101), (3, 300, 301)],
        source_schema="key INT, `when` INT, `matched` INT",
        on="t.key = s.key AND t.`when` IS NOT NULL",
        clauses=(update({"`when`": "s.`matched`"}), insert_all("s.`when` > 0")),
        expected=[
            (1, 101, 11),  # updated
            (2, 20, 21),
            (3, 300, 301),  # inserted
        ],
    ),
    MergeCase(
        name="letters_beyond_ascii_in_columns_and_aliases",
        target=[(1, 10), (2, 20)],
        target_schema="`schl\u00fcssel` INT, `\u503c` INT",
        source=[(1, 100), (3, 300)],
        source_schema="`schl\u00fcssel` INT, `\u503c` INT",
        sql="""
            MERGE INTO {target} AS `\u76ee\u6807` USING {source} AS `qu'elle`
            ON `\u76ee\u6807`.`schl\u00fcssel` = `qu'elle`.`schl\u00fcssel`
            WHEN MATCHED THEN UPDATE SET `\u503c` = `qu'elle`.`\u503c`
            WHEN NOT MATCHED THEN INSERT *""",
        expected=[
            (1, 100),  # updated
            (2, 20),
            (3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="alias_named_like_a_column",
        target=[(1, 10), (2, 20)],
        target_schema="k INT, v INT",
        source=SOURCE,
        sql="""
            MERGE INTO {target} AS k USING {source} AS v ON k.k = v.k
            WHEN MATCHED THEN UPDATE SET k.v = v.v
            WHEN NOT MATCHED THEN INSERT (k, v) VALUES (v.k, v.v)""",
        expected=UPSERTED,
    ),
    MergeCase(
        name="alias_named_like_a_struct_column",
        target=[(1, (10,)), (2, (20,))],
        target_schema="k INT, t STRUCT<k: INT>",
        source=SOURCE,
        clauses=(update({"t.t.k": "s.v + t.t.k"}),),
        expected=[
            (1, (110,)),  # updated
            (2, (20,)),
        ],
    ),
    MergeCase(
        name="target_by_catalog_and_schema_in_back_quotes",
        target=TARGET,
        source=SOURCE,
        target_by="name",
        sql=UPSERT.replace("{target}", "`spark_catalog`.`default`.`{target}`"),
        expected=UPSERTED,
    ),
    MergeCase(
        name="target_by_a_view_that_filters_is_an_error",
        target=TARGET,
        source=SOURCE,
        target_by="view",
        view="SELECT * FROM {target} WHERE k < 2",
        sql=UPSERT,
        error="DELTA_UNEXPECTED_PARTIAL_SCAN",
    ),
    MergeCase(
        name="target_by_a_view_that_leaves_a_column_out_is_an_error",
        target=TARGET,
        source=SOURCE,
        target_by="view",
        view="SELECT k FROM {target}",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
        error="DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS",
    ),
    MergeCase(
        name="target_by_a_permanent_view_is_an_error",
        target=TARGET,
        source=SOURCE,
        target_by="permanent_view",
        sql=UPSERT,
        error="DELTA_UNSUPPORTED_SOURCE",
    ),
    MergeCase(
        name="insert_that_says_the_columns_with_the_table_before_them",
        target=TARGET,
        source=SOURCE,
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (t.v, t.k) VALUES (s.v, s.k)",
        expected=[(1, 10), (2, 20), (3, 300)],  # (3, 300) inserted
    ),
    MergeCase(
        name="insert_of_one_column_in_another_case",
        target=TARGET,
        source=SOURCE,
        clauses=(insert({"K": "S.K"}),),
        expected=[(1, 10), (2, 20), (3, None)],  # (3, null) inserted
    ),
    MergeCase(
        name="target_by_a_view_that_renames_is_an_error",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (3, 300)],
        target_by="view",
        view="SELECT k, v AS w FROM {target}",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET w = s.v",
        error="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
    ),
    MergeCase(
        name="target_by_a_view_in_another_order_of_columns_is_an_error",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (3, 300)],
        target_by="view",
        view="SELECT v, k FROM {target}",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)",
        error="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
    ),
)
