"""Processes are killed at random moments of merges, change events, streams and upkeep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.torture.files_of_versions import kind_of
from tests.torture.killed_model import TABLES, Lake
from tests.torture.meanwhile import Reader, rows_of, viewing
from tests.torture.sizes import first_seed, size
from tests.torture.victims import Lane

pytestmark = pytest.mark.torture


def test_what_is_killed_at_any_moment_is_there_once_after_another_attempt(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing is lost, doubled or seen half; VACUUM removes what no version names, and no more."""
    seed, kills = first_seed(), size("KILLS", small=4, full=200)
    lanes = [Lane(Lake(tmp_path / f"lake-{i}", f"{seed}/lake-{i}"), seed) for i in range(2)]
    for lane in lanes:
        lane.lake.folder.mkdir()
    reader = Reader([lane.lake for lane in lanes])
    with reader.reading(), viewing(seed, reader.lakes) as views, ThreadPoolExecutor(2) as both:
        list(both.map(Lane.kill, lanes, [kills - kills // 2, kills // 2]))
        list(both.map(Lane.finish, lanes))
        viewed = views()

    lost, doubled = difference_to_replay(lanes)
    torn = [*reader.wrong, *filter(None, viewed)]
    files = {name: each for lane in lanes for name, each in lane.files().items()}
    figures = {
        "seed": seed,
        "kills": sum(lane.killed for lane in lanes),
        "works completed": sum(lane.lake.done() for lane in lanes),
        "works begun again": sum(lane.num_repeated() for lane in lanes),
        "reads by delta-rs": reader.reads,
        "reads of views by Spark": len(viewed),
        "lost, doubled rows; torn reads": f"{lost.total()}, {doubled.total()}; {len(torn)}",
        "files without a version, by kind": total(lane.found() for lane in lanes),
        "of these after VACUUM": sum(len(each.orphans) for each in files.values()),
        "left beside logs": total(
            Counter(map(kind_of, each.beside_log)) for each in files.values()
        ),
        "kills by work": total(lane.kinds for lane in lanes),
        "kills by what was on disk": total(lane.phases for lane in lanes),
    }
    for name, value in figures.items():
        record_property(name, value)
    assert not torn, (seed, torn[:5])
    assert (lost, doubled) == (Counter(), Counter()), seed
    assert {name: each.on_disk for name, each in files.items()} == {
        name: each.newest for name, each in files.items()
    }, seed


def difference_to_replay(lanes: Sequence[Lane]) -> tuple[Counter[str], Counter[str]]:
    """How many rows each table lacks, and has beyond those of its journal's works."""
    lost, doubled = Counter[str](), Counter[str]()
    for lane in lanes:
        for table in TABLES:
            model = lane.lake.model
            expected = Counter(model.rows(table, model.steps(table, lane.lake.done())))
            found = Counter(rows_of(lane.lake, table)[0])
            lost[str(lane.lake.table(table))] += (expected - found).total()
            doubled[str(lane.lake.table(table))] += (found - expected).total()
    return +lost, +doubled


def total(counters: Iterable[Counter[str]]) -> str:
    """The sum of counters, as text."""
    return ", ".join(f"{name}: {n}" for name, n in sum(counters, Counter()).most_common())
