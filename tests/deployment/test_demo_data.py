from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from assets import demo_data

KEY = ["wr_order_number", "wr_item_sk"]
# One return for each of these days (Julian day numbers), each with 2,000 items; the last has none.
DAYS = {
    "1998-06-30": 2450995,
    "2002-12-31": 2452640,
    "2003-01-01": 2452641,
    "2003-02-01": 2452672,
    "2003-03-01": 2452700,
}
PARTITIONS = ["1998-12", "2002-12", "2003-01", "2003-02", "2003-03"]
ITEMS = 2000


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the generator makes it: fields closed by `|`, nothing between two for a null."""
    lines = [
        f"{day}|1|{item}|" + "|" * 10 + f"{order}|5|10.00|0.50|10.50|" + "1.25|" * 6
        for order, day in enumerate([*DAYS.values(), ""], start=1)
        for item in range(1, ITEMS + 1)
    ]
    path = tmp_path_factory.mktemp("generated") / "web_returns.dat"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def lake(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("lake")
    demo_data.land(lake, generated=generated)
    return lake


def _rows(lake: Path, partition: str) -> pa.Table:
    return pyarrow.parquet.ParquetFile(
        demo_data.landing(lake) / partition / "part-0.parquet"
    ).read()


def _keys(table: pa.Table) -> set[tuple[int, int]]:
    return set(zip(*(table[name].to_pylist() for name in KEY), strict=True))


def test_partitions_land_complete_and_in_arrival_order(lake: Path) -> None:
    assert demo_data.landed(lake) == PARTITIONS
    for name in PARTITIONS:
        files = {path.name for path in (demo_data.landing(lake) / name).iterdir()}
        assert files == {"part-0.parquet", "_SUCCESS"}


def test_returns_arrive_by_year_then_month_and_undated_ones_first(lake: Path) -> None:
    first = _rows(lake, "1998-12")

    assert set(first["op"].to_pylist()) == {"upsert"}
    assert Counter(first["wr_returned_date_sk"].to_pylist()) == {2450995: ITEMS, None: ITEMS}
    for name, day in zip(PARTITIONS[1:], list(DAYS.values())[1:], strict=True):
        days = Counter(_rows(lake, name)["wr_returned_date_sk"].to_pylist())
        assert days[day] == ITEMS
        assert None not in days


def test_columns_have_the_types_of_tpc_ds(lake: Path) -> None:
    schema = _rows(lake, PARTITIONS[0]).schema

    assert schema.names == [*demo_data.SCHEMA.names, "op"]
    assert len(demo_data.SCHEMA.names) == 24
    assert schema.field("wr_order_number").type == pa.int64()
    assert schema.field("wr_return_quantity").type == pa.int32()
    assert schema.field("wr_net_loss").type == pa.decimal128(7, 2)


def test_a_key_is_at_most_once_in_a_partition(lake: Path) -> None:
    for name in PARTITIONS:
        rows = _rows(lake, name)
        assert len(_keys(rows)) == len(rows)


# Partition, the days whose returns it can still change, and those whose returns it restates.
OPEN = [
    ("2002-12", [], []),  # four years after the first
    ("2003-01", ["2002-12-31"], []),
    ("2003-02", ["2002-12-31", "2003-01-01"], []),
    ("2003-03", ["2002-12-31", "2003-01-01", "2003-02-01"], ["2003-02-01"]),
]


def test_a_partition_changes_returns_of_four_months_and_restates_one(
    lake: Path,
) -> None:
    gone: set[tuple[int, int]] = set()
    for name, open_days, restated in OPEN:
        rows = _rows(lake, name)
        deletes = pc.equal(rows["op"], "delete")
        for day, number in DAYS.items():
            of_day = rows.filter(pc.equal(rows["wr_returned_date_sk"], number))
            deleted = _keys(of_day.filter(pc.equal(of_day["op"], "delete")))
            upserted = _keys(of_day.filter(pc.equal(of_day["op"], "upsert")))
            if day not in open_days:
                assert not deleted
                assert len(upserted) == (ITEMS if day.startswith(name) else 0)
                continue
            assert 0.005 < len(deleted) / ITEMS < 0.015
            assert not (upserted | deleted) & gone
            if day in restated:
                assert len(upserted) == ITEMS - len(deleted)
            else:
                assert 0.02 < len(upserted) / ITEMS < 0.04
        gone |= _keys(rows.filter(deletes))


def test_a_correction_changes_quantity_and_amounts(lake: Path) -> None:
    rows = _rows(lake, "2003-02")
    corrected = rows.filter(
        pc.and_(pc.equal(rows["op"], "upsert"), pc.not_equal(rows["wr_order_number"], 4))
    )

    assert len(corrected) > 0
    assert set(corrected["wr_return_quantity"].to_pylist()) == {8}
    assert {str(amount) for amount in corrected["wr_return_amt"].to_pylist()} == {"13.00"}


def test_what_has_landed_is_not_landed_again(generated: Path, tmp_path: Path) -> None:
    assert demo_data.land(tmp_path, upto=1, generated=generated) == PARTITIONS[:1]
    marker = demo_data.landing(tmp_path) / PARTITIONS[0] / "_SUCCESS"
    landed_at = marker.stat().st_mtime_ns

    assert demo_data.land(tmp_path, upto=1, generated=generated) == []
    assert demo_data.land(tmp_path, upto=2, generated=generated) == PARTITIONS[1:2]
    assert demo_data.land(tmp_path, generated=generated) == PARTITIONS[2:]
    assert marker.stat().st_mtime_ns == landed_at


def test_landing_in_steps_gives_what_landing_at_once_gives(
    lake: Path, generated: Path, tmp_path: Path
) -> None:
    for upto in (1, 2, 3, 5):
        demo_data.land(tmp_path, upto=upto, generated=generated)

    for name in PARTITIONS:
        assert _rows(tmp_path, name).equals(_rows(lake, name))


def test_the_next_partition_lands_until_all_have(generated: Path, tmp_path: Path) -> None:
    made = tmp_path / "generated" / "scale-1" / "web_returns.dat"  # as the generator leaves it
    made.parent.mkdir(parents=True)
    made.symlink_to(generated)

    landed = [demo_data.land_next(tmp_path) for _ in range(len(PARTITIONS) + 1)]

    assert landed == [*PARTITIONS, None]


def test_a_partition_appears_complete_and_its_marker_is_written_last(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet, "write_table", fail)
        with pytest.raises(OSError, match="disk full"):
            demo_data.land(tmp_path, upto=1, generated=generated)
    assert not demo_data.landing(tmp_path).exists()
    assert not list(tmp_path.rglob("_SUCCESS"))

    assert demo_data.land(tmp_path, upto=1, generated=generated) == PARTITIONS[:1]


def test_a_lake_is_of_one_scale(tmp_path: Path) -> None:
    (tmp_path / "generated" / "scale-1").mkdir(parents=True)

    with pytest.raises(demo_data.GeneratorError, match="holds scale-1"):
        demo_data.land(tmp_path, scale=0.01)
