"""The demo lake's source: TPC-DS web returns, landed as one directory for each month.

The rows come from the published TPC-DS generator. The first partition is the initial load: the
returns of 1998 to 2002 and those without a date. Each other return arrives in the month of its
returned date.
Each later partition also re-delivers some earlier returns, corrected, and deletes others, so that
merging the partitions in order updates, inserts and deletes.

    python -m assets.demo_data --lake .lake --scale 1 --upto 3
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from deltaweave.bench.data import TABLE, GeneratorError, tpcds
from resources.environments import lake as demo_lake

FIRST = "2002-12"  # the initial load, with the returns of all months until then
COMPLETE = "_SUCCESS"  # written last: a partition directory without it is not read

SCHEMA = tpcds.schema()
"""The columns of TPC-DS web_returns; a landed partition has `op` ('upsert' or 'delete') besides."""

_UNIX_EPOCH = 2440588  # 1970-01-01 as a Julian day number, the unit of TPC-DS dates

# Shares of the earlier returns that a partition changes, in 1024ths: about 1% and about 3%.
_DELETED = 10
_CORRECTED = 31
_OPEN_FOR = 4  # months for which a return can still be corrected or deleted


def landing(lake: Path) -> Path:
    """The directory under which the source partitions of web_returns land."""
    return lake / "landing" / TABLE


def landed(lake: Path) -> list[str]:
    """Names of the complete partitions, in arrival order."""
    return sorted(marker.parent.name for marker in landing(lake).glob(f"*/{COMPLETE}"))


def land(
    lake: Path, *, upto: int | None = None, scale: float = 1, generated: Path | None = None
) -> list[str]:
    """Lands source partitions in arrival order until `upto` of them are there.

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
    arrival = _arrival(returns)
    names = sorted(pc.unique(arrival).to_pylist())[:upto]
    new = [name for name in names if name not in landed(lake)]
    arrived_in = pc.index_in(arrival, pa.array(names))
    gone = pa.array([False] * len(returns))
    for number, name in enumerate(names):
        earlier = pc.and_(
            pc.less(arrived_in, number), pc.greater_equal(arrived_in, number - _OPEN_FOR)
        )
        still_there = pc.and_(earlier, pc.invert(gone))
        draw = _draw(returns, number)
        deleted = pc.and_(still_there, pc.less(draw, _DELETED))
        corrected = pc.and_(
            pc.and_(still_there, pc.greater_equal(draw, _DELETED)),
            pc.less(draw, _DELETED + _CORRECTED),
        )
        if name in new:
            changes = [
                _with_op(returns.filter(pc.equal(arrived_in, number)), "upsert"),
                _with_op(_correct(returns.filter(corrected), number), "upsert"),
                _with_op(returns.filter(deleted), "delete"),
            ]
            _write_partition(lake, name, pa.concat_tables(changes))
        gone = pc.or_(gone, deleted)  # what was deleted is not corrected back to life
    return new


def _arrival(returns: pa.Table) -> pa.ChunkedArray:
    """The name of the partition in which each return first arrives, e.g. `2003-01`."""
    since_epoch = pc.subtract(returns["wr_returned_date_sk"], pa.scalar(_UNIX_EPOCH, pa.int32()))
    date = pc.cast(since_epoch, pa.date32())
    month = pc.strftime(date, "%Y-%m")
    return pc.fill_null(pc.max_element_wise(month, FIRST), FIRST)


def _draw(returns: pa.Table, number: int) -> pa.ChunkedArray:
    """A number from 0 to 1023 for each return, decided by its key and the partition's number."""

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
    """The returns with one more piece, and one more currency unit, for each partition so far."""
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
    """The generator's output at this scale, made unless the lake has it."""
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
    options = parser.parse_args()
    try:
        new = land(options.lake, upto=options.upto, scale=options.scale)
    except GeneratorError as error:
        parser.exit(1, f"{error}\n")
    print(f"landed {len(new)} new partitions: {' '.join(new) or 'none'}")


if __name__ == "__main__":
    _main()
