"""Tests whose cells take turns between `make test` and `make test-slow`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.turns import EVERY, Turns

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
