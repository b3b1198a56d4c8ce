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
DAYS = {"1998-06-30": 2450995, "2002-12-31": 2452640, "2003-01-01": 2452641, "2003-02-01": 2452672}
MONTHS = ["2002-12", "2003-01", "2003-02"]
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
    assert demo_data.landed(lake) == MONTHS
    for month in MONTHS:
        files = {path.name for path in (demo_data.landing(lake) / month).iterdir()}
        assert files == {"part-0.parquet", "_SUCCESS"}


def test_returns_arrive_in_the_month_of_their_date_early_and_undated_ones_with_the_first(
    lake: Path,
) -> None:
    first = _rows(lake, "2002-12")

    assert set(first["op"].to_pylist()) == {"upsert"}
    assert Counter(first["wr_returned_date_sk"].to_pylist()) == {
        2450995: ITEMS,
        2452640: ITEMS,
        None: ITEMS,
    }
    second = _rows(lake, "2003-01")
    assert pc.sum(pc.equal(second["wr_returned_date_sk"], 2452641)).as_py() == ITEMS


def test_columns_have_the_types_of_tpc_ds(lake: Path) -> None:
    schema = _rows(lake, MONTHS[0]).schema

    assert schema.names == [*demo_data.SCHEMA.names, "op"]
    assert len(demo_data.SCHEMA.names) == 24
    assert schema.field("wr_order_number").type == pa.int64()
    assert schema.field("wr_return_quantity").type == pa.int32()
    assert schema.field("wr_net_loss").type == pa.decimal128(7, 2)


def test_a_key_is_at_most_once_in_a_partition(lake: Path) -> None:
    for month in MONTHS:
        rows = _rows(lake, month)
        assert len(_keys(rows)) == len(rows)


def test_later_partitions_correct_about_3_percent_and_delete_about_1_percent(lake: Path) -> None:
    arrived: set[tuple[int, int]] = set()
    gone: set[tuple[int, int]] = set()
    for month in MONTHS:
        rows = _rows(lake, month)
        deleted = _keys(rows.filter(pc.equal(rows["op"], "delete")))
        upserted = _keys(rows.filter(pc.equal(rows["op"], "upsert")))
        if arrived:
            assert deleted <= arrived - gone
            assert 0.005 < len(deleted) / len(arrived) < 0.015
            assert 0.02 < len(upserted & arrived) / len(arrived) < 0.04
            assert not upserted & gone
        arrived |= upserted
        gone |= deleted


def test_a_correction_changes_quantity_and_amounts(lake: Path) -> None:
    rows = _rows(lake, MONTHS[2])
    corrected = rows.filter(
        pc.and_(pc.equal(rows["op"], "upsert"), pc.not_equal(rows["wr_order_number"], 4))
    )

    assert len(corrected) > 0
    assert set(corrected["wr_return_quantity"].to_pylist()) == {7}
    assert {str(amount) for amount in corrected["wr_return_amt"].to_pylist()} == {"12.00"}


def test_what_has_landed_is_not_landed_again(generated: Path, tmp_path: Path) -> None:
    assert demo_data.land(tmp_path, upto=1, generated=generated) == MONTHS[:1]
    marker = demo_data.landing(tmp_path) / MONTHS[0] / "_SUCCESS"
    landed_at = marker.stat().st_mtime_ns

    assert demo_data.land(tmp_path, upto=1, generated=generated) == []
    assert demo_data.land(tmp_path, upto=2, generated=generated) == MONTHS[1:2]
    assert demo_data.land(tmp_path, generated=generated) == MONTHS[2:]
    assert marker.stat().st_mtime_ns == landed_at


def test_landing_in_steps_gives_what_landing_at_once_gives(
    lake: Path, generated: Path, tmp_path: Path
) -> None:
    for upto in (1, 2, 3):
        demo_data.land(tmp_path, upto=upto, generated=generated)

    for month in MONTHS:
        assert _rows(tmp_path, month).equals(_rows(lake, month))


def test_a_partition_is_complete_when_it_appears_and_its_marker_is_written_last(
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

    assert demo_data.land(tmp_path, upto=1, generated=generated) == MONTHS[:1]


def test_a_lake_is_of_one_scale(tmp_path: Path) -> None:
    (tmp_path / "generated" / "scale-1").mkdir(parents=True)

    with pytest.raises(demo_data.GeneratorError, match="holds scale-1"):
        demo_data.land(tmp_path, scale=0.01)
