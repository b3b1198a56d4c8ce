"""What Delta's own MERGE did in each case: recorded here, and checked by `make test-all`.

Running it takes as long as the engine's merge does, and gives the same each time: its release is
pinned. `make record-oracle` records again what cases, or another release, have changed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.merge_cases.case import COPY_ON_WRITE, VECTORS_AND_FEED, Layout, MergeCase
from tests.support.kept_tables import IS_ANOTHER_PAIR, IS_LIVE, RELEASES, digest_as_written
from tests.support.oracles import Outcome

LAYOUTS = (COPY_ON_WRITE, VECTORS_AND_FEED)
"""The layouts that are recorded: those that `make test` runs."""

_FOLDER = Path(__file__).parent / "recorded_outcomes"


def oracle(case: MergeCase, layout: Layout, run: Callable[[], Outcome]) -> Outcome:
    """What Delta's MERGE does to a case.

    Args:
        case: The case.
        layout: How its table is kept.
        run: Runs Delta's MERGE on it.
    """
    if layout not in LAYOUTS or IS_ANOTHER_PAIR:
        return run()
    known = _known(case, layout)
    if not IS_LIVE:
        return _outcome(known)
    found = run()
    assert _as_data(found) == known, "Delta's MERGE no longer does what is recorded"
    return found


def _known(case: MergeCase, layout: Layout) -> dict[str, Any]:
    """What is recorded of a case, as JSON has it."""
    recorded = _recording(layout)
    entry = recorded["cases"].get(case.name)
    if recorded["releases"] != RELEASES or entry is None or entry["case"] != _digest(case, layout):
        pytest.fail(
            f"What Delta's MERGE does in {case.name} is not recorded for this case and {RELEASES}:"
            " run `make record-oracle`, and look at what changed."
        )
    outcome: dict[str, Any] = entry["outcome"]
    return outcome


def _outcome(known: dict[str, Any]) -> Outcome:
    data = dict(known)
    error = data.pop("error")
    return Outcome(
        **{**data, "error_classes": tuple(data["error_classes"])},
        path="",
        error=RuntimeError(error) if error else None,
    )


def record(
    layout: Layout, outcomes: Sequence[tuple[MergeCase, Outcome]], *, beside_others: bool = False
) -> None:
    """Write what Delta's MERGE does in each of these cases.

    Args:
        layout: How their tables are kept.
        outcomes: The cases, and what it does.
        beside_others: Whether what is recorded of other cases stays.
    """
    known = _recording(layout) if beside_others else {"releases": RELEASES, "cases": {}}
    assert known["releases"] == RELEASES, "record all cases of another release"
    cases = known["cases"] | {
        case.name: {"case": _digest(case, layout), "outcome": _as_data(outcome)}
        for case, outcome in outcomes
    }
    cases = dict(sorted(cases.items()))
    _FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"releases": RELEASES, "cases": cases}, indent=1, ensure_ascii=False)
    _file(layout).write_text(text + "\n")


@functools.cache
def _recording(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_file(layout).read_text())
    return found


def _file(layout: Layout) -> Path:
    return _FOLDER / f"{layout}.json"


def _as_data(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON has it, without what differs from run to run: places and times."""
    data = asdict(replace(outcome, error=None))
    data.pop("path")
    data.pop("parameters")
    data["error"] = type(outcome.error).__name__ if outcome.error else None
    data["error_classes"] = list(outcome.error_classes)
    # Times differ from run to run, and bytes with the codec's release.
    counts = {k: v for k, v in outcome.metrics.items() if not k.endswith("Ms") and "Bytes" not in k}
    data["metrics"] = dict(sorted(counts.items()))
    return data


def _digest(case: MergeCase, layout: Layout) -> str:
    """Return what distinguishes the case from its namesakes, and its table from other ones."""
    return digest_as_written(repr(layout.of(case)))
