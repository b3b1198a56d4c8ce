"""Tests whose cells take turns, and shares of the slow ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.turns import EVERY, Share, Turns

ROOT = Path(__file__).parents[2]
TAKING_TURNS = [(module, name) for module, names in EVERY.items() for name in names]


@pytest.mark.parametrize(("module", "name"), TAKING_TURNS)
def test_every_test_that_takes_turns_exists(module: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", (ROOT / module).read_text(), re.MULTILINE)


def test_of_n_cells_one_is_soon_and_of_others_each_is() -> None:
    module, name = next(each for each in TAKING_TURNS if EVERY[each[0]][each[1]] == 3)
    turns = Turns()
    soon = [turns.is_soon(f"{module}::{name}[{place}]") for place in range(7)]
    assert soon == [True, False, False, True, False, False, True]
    assert all(turns.is_soon(f"{module}::test_of_its_own[{place}]") for place in range(3))


def test_shares_hold_each_test_once_and_keep_together_what_is_made_once() -> None:
    cells = [f"{module}::test_{n}" for module in "abc" for n in range(5)]
    shares = [Share(f"{n}/4", group_of).of(cells) for n in range(1, 5)]
    assert sorted(cell for share in shares for cell in share) == cells
    assert [sum(cell.startswith("b") for cell in share) for share in shares].count(0) == 3
    assert all(any(cell.startswith("a") for cell in share) for share in shares)
    assert [Share(f"{n}/4", group_of).of(reversed(cells)) for n in range(1, 5)] == shares


def group_of(cell: str) -> str:
    """The tests of module b share something long to make."""
    return "b" if cell.startswith("b::") else cell


@pytest.mark.parametrize("share", ["0/4", "5/4", "2", "a/b", "1/0"])
def test_a_share_that_does_not_exist_is_an_error_in_words(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="write the second of four as 2/4"):
        Share(share, group_of)


def test_the_jobs_of_the_workflow_run_all_shares() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"SHARE=(\d)/6", workflow) == ["1", "2", "3", "4", "5", "6"]
