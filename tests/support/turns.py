"""Which command runs which test.

Of tests whose cells take turns, `make test` runs every n-th, and `make test-slow` the others. What
two layouts share by turns has an odd number, so that `make test` runs some of both.

`make test-slow SHARE=2/4` runs the second of four shares, so that four machines do it at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

_ENGINE = "tests/deltaweave/engine"
_CHANGES = "tests/deltaweave/changes"
EVERY = {
    "tests/merge_cases/test_merge_cases.py": {
        "test_sql_text_gives_what_built_in_merge_gives": 11,
        "test_the_builder_gives_what_built_in_merge_gives": 3,
        "test_merges_on_the_driver_give_what_built_in_merge_gives": 3,
    },
    "tests/deltaweave/delta/log/test_followed_tables.py": {
        "test_what_does_not_fit_is_not_known": 3,
        "test_too_much_is_asked_of_delta": 3,
    },
    f"{_ENGINE}/source/test_literals.py": {
        "test_a_collected_value_is_the_same_as_a_literal": 3,
    },
    "tests/deltaweave/delta/statement/test_defects.py": {
        "test_built_in_merge_gets_it_wrong_and_the_engine_right": 5,
    },
    "tests/deltaweave/test_session_merges.py": {
        "test_existing_code_gets_what_it_gets_from_built_in_merge": 6,
        "test_existing_code_catches_the_errors_of_built_in_merge": 3,
    },
    f"{_CHANGES}/debezium/test_changes.py": {
        "test_rows_of_a_snapshot_come_before_the_changes_of_the_log": 3,
    },
    f"{_CHANGES}/debezium/test_documents.py": {
        "test_what_has_no_whole_values_is_refused": 4,
    },
    f"{_CHANGES}/debezium/test_values.py": {
        "test_parts_of_values_are_read_as_columns_of_their_types": 2,
    },
    f"{_CHANGES}/test_nested_types.py": {
        "test_fields_are_found_by_name_and_null_where_an_event_lacks_them": 3,
    },
    f"{_CHANGES}/test_rescued.py": {
        "test_messages_that_cannot_be_applied_are_kept_aside_once": 3,
    },
    f"{_CHANGES}/merge_on_read/test_arguments.py": {
        "test_a_condition_of_other_columns_than_keys_is_refused_by_their_name": 3,
        "test_changes_lie_beside_the_base_however_it_is_named": 3,
    },
    f"{_ENGINE}/backends/local/test_pairs_by_keys.py": {
        "test_merges_give_what_built_in_merge_gives": 9,
        "test_keys_of_one_name": 2,
        "test_spark_finds_the_pairs_above_a_limit": 3,
        "test_what_is_left_of_files_is_copied": 2,
        "test_updates_that_read_the_target_stay_in_place_in_partitions": 3,
        "test_rows_of_a_materialized_source_are_known_by_their_numbers": 2,
    },
    f"{_ENGINE}/test_statistics_pruning.py": {
        "test_partitions_of_other_values_are_not_read": 3,
        "test_files_that_a_condition_rules_out_are_not_read": 3,
        "test_not_matched_by_source_keeps_files_that_a_clause_may_take": 3,
        "test_keys_in_fields_of_structs": 2,
    },
    f"{_ENGINE}/test_unaffected_rows.py": {
        "test_every_source_row_is_accounted_for": 5,
    },
    f"{_ENGINE}/source/test_broadcasts.py": {
        "test_repeated_text_is_broadcast_by_its_decoded_bytes": 4,
    },
    f"{_ENGINE}/source/test_widths.py": {
        "test_rows_come_whole_or_not_at_all": 3,
    },
    f"{_ENGINE}/test_column_named_metadata.py": {
        "test_files_are_rewritten_if_marked_rows_made_the_table_unreadable": 3,
    },
    f"{_ENGINE}/test_conditions_that_fail.py": {
        "test_a_condition_that_fails_for_rows_of_other_clauses_fails_nothing": 6,
    },
    f"{_ENGINE}/commit/test_rebase.py": {
        "test_a_stop_after_a_lost_commit_ends_the_merge": 3,
        "test_what_fails_between_two_commits_releases_the_lock": 3,
    },
    f"{_ENGINE}/test_history.py": {
        "test_the_entry_is_that_of_built_in_merge": 4,
    },
    f"{_ENGINE}/test_keys_at_extremes.py": {
        "test_keys_of_any_name_find_their_files": 3,
    },
    f"{_ENGINE}/test_attempts.py": {
        "test_an_interrupt_at_any_step_ends_the_merge_and_a_failure_tries_spark": 3,
        "test_values_that_python_lacks_are_merged": 2,
    },
    f"{_ENGINE}/test_options.py": {
        "test_updates_that_change_nothing_are_skipped_where_asked": 3,
    },
    f"{_ENGINE}/commit/test_reruns.py": {
        "test_a_merge_fails_if_its_source_may_hold_rows_of_the_losing_version": 3,
        "test_a_merge_reruns_if_its_source_gives_what_a_later_statement_reads": 2,
    },
    f"{_ENGINE}/backends/local/test_keys.py": {
        "test_keys_of_a_wider_type_match_as_in_built_in_merge": 9,
        "test_each_of_two_keys_may_rule_a_row_out": 2,
    },
    f"{_ENGINE}/backends/local/test_partitions.py": {
        "test_partitions_hold_what_built_in_merge_gives": 5,
        "test_a_constraint_on_the_partition_holds": 3,
    },
    f"{_ENGINE}/backends/local/test_matches.py": {
        "test_vectors_that_exist_are_read_where_files_are_many": 6,
        "test_too_many_rows_with_keys_of_the_source_are_left_to_spark": 2,
    },
    f"{_ENGINE}/backends/local/test_values.py": {
        "test_an_old_value_that_another_commit_changed_is_read_again": 7,
        "test_rows_that_were_marked_before_are_not_read": 2,
    },
    f"{_ENGINE}/test_encrypted_tables.py": {
        "test_no_strategy_leaves_a_secret_that_is_read_without_a_key": 3,
        "test_a_table_that_is_encrypted_by_its_properties_alone_stays_so": 2,
    },
    f"{_ENGINE}/strategies/test_copy_in_place.py": {
        "test_files_rewritten_in_place_record_their_changes_in_the_feed": 2,
    },
    f"{_ENGINE}/test_interrupts.py": {
        "test_an_interrupt_while_the_source_is_evaluated_ends_the_merge": 2,
    },
    f"{_ENGINE}/backends/local/test_merge.py": {
        "test_whether_a_row_stays_is_seen_in_the_file_and_not_in_its_statistics": 4,
        "test_files_of_every_writer_are_read_and_rewritten": 3,
        "test_a_file_that_keeps_no_row_is_not_copied": 2,
    },
    f"{_ENGINE}/strategies/test_rows_that_move.py": {
        "test_rows_move_as_by_built_in_merge": 9,
    },
    f"{_ENGINE}/source/test_source_tables.py": {
        "test_which_tables_are_read_and_that_the_merge_is_that_of_built_in": 9,
        "test_a_view_is_materialized_unless_its_files_are_known": 9,
        "test_names_for_files_that_a_table_does_not_use_are_not_used": 2,
    },
}


class Turns:
    """Marks the cells that `make test` leaves to `make test-slow`."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # Marked cells have been left to other commands already.
        if any(map(item.get_closest_marker, ("minutes", "full_matrix"))):
            return
        if not self.is_soon(item.nodeid):
            item.add_marker(pytest.mark.minutes)

    def is_soon(self, cell: str) -> bool:
        """Whether `make test` runs this cell, of those that are asked about in their order."""
        test = cell.split("[")[0]
        module, _, name = test.rpartition("::")
        every = EVERY.get(module, {}).get(name, 1)
        self._seen[test] += 1
        return (self._seen[test] - 1) % every == 0


class Share:
    """Leaves the tests of other shares out; what one module makes once is of one share.

    Each module of as many tests as there are shares has some in each.
    """

    def __init__(self, share: str, group_of: Callable[[str], str]) -> None:
        """Take a share, 2/4, and a function that groups the tests a worker of pytest runs together.

        Raises:
            pytest.UsageError: No such share exists.
        """
        numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", share)
        self._number, self._of = map(int, numbers.groups()) if numbers else (1, 0)
        if self._number > self._of:
            raise pytest.UsageError(f"SHARE is {share!r}: write the second of four as 2/4")
        self._group_of = group_of

    @pytest.hookimpl(trylast=True)  # the marks have selected before
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        mine = self.of(item.nodeid for item in items)
        others = [item for item in items if item.nodeid not in mine]
        items[:] = [item for item in items if item.nodeid in mine]
        config.hook.pytest_deselected(items=others)

    def of(self, cells: Iterable[str]) -> set[str]:
        """Return the cells of this share, whatever their order."""
        groups: dict[str, list[str]] = {}
        for cell in sorted(cells):
            groups.setdefault(self._group_of(cell), []).append(cell)
        return {
            cell for group in list(groups)[self._number - 1 :: self._of] for cell in groups[group]
        }
