"""The demo lake's source: TPC-DS web returns, landed as one directory for each year, then month.

The rows come from the published TPC-DS generator. A partition delivers the returns of its period:
of a year until 2002, of a month of 2003; returns without a date arrive with the first year. Each
partition also delivers some returns of the four months before its period again, corrected, and
deletes others. Every third month delivers all returns of the month before again, as restated
accounts do. So merging the partitions in order updates, inserts and deletes, and concerns recent
returns alone.

    python -m assets.demo_data --lake .lake --scale 1 --upto 3
    python -m assets.demo_data --next
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from assets import tpcds
from assets.tpcds import TABLE, GeneratorError
from resources.environments import lake as demo_lake

LAST_YEAR = 2002  # until then, a partition has the returns of a year
COMPLETE = "_SUCCESS"  # written last: a partition directory without it is not read

SCHEMA = tpcds.schema()
"""The columns of TPC-DS web_returns; a landed partition has `op` ('upsert' or 'delete') besides."""

_LANDED = "Landed {}. If it is switched on, the sensor web_returns_landed requests its run."

_UNIX_EPOCH = 2440588  # 1970-01-01 as a Julian day number, the unit of TPC-DS dates

# Shares of the open returns that a partition changes, in 1024ths: about 1% and about 3%.
_DELETED = 10
_CORRECTED = 31
_OPEN_FOR = 4  # months before a partition's period, whose returns it can still correct or delete
_RESTATES = 3  # each month with such a number restates the month before


class Period(NamedTuple):
    """The months whose returns a partition delivers first, counted from the year 0.

    Attributes:
        begin: The first month.
        end: The last month, after which the partition is named.
    """

    begin: int
    end: int

    @property
    def name(self) -> str:
        """The partition's name, e.g. `2003-01`; names sort by arrival."""
        return f"{self.end // 12}-{self.end % 12 + 1:02}"

    @property
    def restates(self) -> bool:
        """Whether the partition delivers all returns of the month before again."""
        return self.begin == self.end and (self.end + 1) % _RESTATES == 0


def landing(lake: Path) -> Path:
    """Return the directory under which the source partitions of web_returns land."""
    return lake / "landing" / TABLE


def landed(lake: Path) -> list[str]:
    """Return the names of the complete partitions, in arrival order."""
    return sorted(marker.parent.name for marker in landing(lake).glob(f"*/{COMPLETE}"))


def land(
    lake: Path, *, upto: int | None = None, scale: float = 1, generated: Path | None = None
) -> list[str]:
    """Land source partitions in arrival order until `upto` of them are there.

    What has landed is not landed again, and the same scale always gives the same partitions.

    Args:
        lake: The lake's root directory.
        upto: How many partitions there shall be at the end; all of them when None.
        scale: TPC-DS scale factor; 1 gives 71,763 returns.
        generated: A file the generator made, to be read instead of running it.

    Returns:
        The names of the partitions that this call landed.

    Raises:
        GeneratorError: The generator could not be fetched or did not run.
    """
    returns = tpcds.read(generated or _generate(lake, scale))
    month = _month(returns)
    periods = _periods(month)[:upto]
    new = [period.name for period in periods if period.name not in landed(lake)]
    arrives_by = pc.fill_null(month, periods[0].end)  # those without a date come with the first
    gone = pa.array([False] * len(returns))
    for number, period in enumerate(periods):
        deleted, corrected = _changed(returns, month, gone, number, period)
        if period.name in new:
            since = pc.greater_equal(arrives_by, period.begin if number else 0)
            arrived = pc.and_(since, pc.less_equal(arrives_by, period.end))
            changes = [
                _with_op(returns.filter(arrived), "upsert"),
                _with_op(_correct(returns.filter(corrected), number), "upsert"),
                _with_op(returns.filter(deleted), "delete"),
            ]
            _write_partition(lake, period.name, pa.concat_tables(changes))
        gone = pc.or_(gone, deleted)  # what was deleted is not corrected back to life
    return new


def land_next(lake: Path, *, scale: float = 1) -> str | None:
    """Land the first partition that has not landed; return its name, or None if all have.

    Raises:
        GeneratorError: The generator could not be fetched or did not run.
    """
    return next(iter(land(lake, upto=len(landed(lake)) + 1, scale=scale)), None)


def _month(returns: pa.Table) -> pa.ChunkedArray:
    """Return the month of each return's date, counted from the year 0; null without a date."""
    since_epoch = pc.subtract(returns["wr_returned_date_sk"], pa.scalar(_UNIX_EPOCH, pa.int32()))
    date = pc.cast(since_epoch, pa.date32())
    return pc.add(pc.multiply(pc.year(date), 12), pc.subtract(pc.month(date), 1))


def _periods(month: pa.ChunkedArray) -> list[Period]:
    """Return the periods of the partitions that have returns, in arrival order."""
    months = pc.unique(month.drop_null()).to_pylist()
    years = {each // 12 for each in months}
    yearly = {Period(12 * year, 12 * year + 11) for year in years if year <= LAST_YEAR}
    monthly = {Period(each, each) for each in months if each // 12 > LAST_YEAR}
    return sorted(yearly | monthly)


def _changed(
    returns: pa.Table, month: pa.ChunkedArray, gone: pa.Array, number: int, period: Period
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return which of the returns before a partition it deletes, and which it corrects."""
    is_open = pc.and_(
        pc.less(month, period.begin), pc.greater_equal(month, period.begin - _OPEN_FOR)
    )
    still_there = pc.and_(pc.fill_null(is_open, False), pc.invert(gone))
    draw = _draw(returns, number)
    deleted = pc.and_(still_there, pc.less(draw, _DELETED))
    drawn = pc.less(draw, _DELETED + _CORRECTED)
    if period.restates:
        drawn = pc.or_(drawn, pc.fill_null(pc.equal(month, period.begin - 1), False))
    return deleted, pc.and_(pc.and_(still_there, drawn), pc.invert(deleted))


def _draw(returns: pa.Table, number: int) -> pa.ChunkedArray:
    """Draw a number from 0 to 1023 for each return, from its key and the partition's number."""

    def constant(value: int) -> pa.Scalar:
        return pa.scalar(value, pa.uint64())

    order, item = (
        pc.cast(returns[name], pa.uint64()) for name in ("wr_order_number", "wr_item_sk")
    )
    # Multiplicative hashing; Arrow's unchecked arithmetic wraps around, as it must here.
    mixed = pc.add(
        pc.multiply(order, constant(0x9E3779B97F4A7C15)),
        pc.multiply(pc.add(item, constant(number << 32)), constant(0xC2B2AE3D27D4EB4F)),
    )
    mixed = pc.multiply(
        pc.bit_wise_xor(mixed, pc.shift_right(mixed, constant(32))), constant(0x165667B19E3779F9)
    )
    return pc.cast(pc.shift_right(mixed, constant(54)), pa.int32())


def _correct(returns: pa.Table, number: int) -> pa.Table:
    """Add one piece and one currency unit to the returns for each partition so far."""
    for name in ("wr_return_quantity", "wr_return_amt", "wr_return_amt_inc_tax", "wr_net_loss"):
        column = SCHEMA.field(name)
        more = pa.scalar(number, column.type)
        value = pc.add(pc.fill_null(returns[name], pa.scalar(0, column.type)), more)
        index = returns.schema.get_field_index(name)
        returns = returns.set_column(index, column, pc.cast(value, column.type))
    return returns


def _with_op(returns: pa.Table, op: str) -> pa.Table:
    return returns.append_column("op", pa.array([op] * len(returns), pa.string()))


def _write_partition(lake: Path, name: str, changes: pa.Table) -> None:
    # Staged outside the landing directory and renamed: a reader sees all of it or nothing.
    staged = lake / ".staging" / TABLE / name
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    pyarrow.parquet.write_table(changes, staged / "part-0.parquet")
    (staged / COMPLETE).touch()
    landing(lake).mkdir(parents=True, exist_ok=True)
    staged.rename(landing(lake) / name)


def _generate(lake: Path, scale: float) -> Path:
    """Return the generator's output at this scale; generate it unless the lake has it."""
    made = lake / "generated" / f"scale-{scale:g}" / f"{TABLE}.dat"
    if made.exists():
        return made
    others = sorted(path.name for path in made.parent.parent.glob("scale-*"))
    if others:
        raise GeneratorError(
            f"The lake {lake} holds {others[0]}, whose returns would mix with those of "
            f"{made.parent.name}. Take another --lake, or remove this one with `make clean`."
        )
    staged = lake / ".staging" / "generated"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    tpcds.generate(staged, scale)
    made.parent.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(made.parent)
    return made


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m assets.demo_data", description=__doc__)
    parser.add_argument("--lake", type=Path, default=demo_lake())
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--upto", type=int, help="land until there are this many partitions")
    parser.add_argument("--next", action="store_true", help="land the next partition")
    options = parser.parse_args()
    try:
        if options.next:
            name = land_next(options.lake, scale=options.scale)
            print(_LANDED.format(name) if name else "All partitions have landed.")
            return
        new = land(options.lake, upto=options.upto, scale=options.scale)
    except GeneratorError as error:
        parser.exit(1, f"{error}\n")
    print(f"landed {len(new)} new partitions: {' '.join(new) or 'none'}")


if __name__ == "__main__":
    _main()
