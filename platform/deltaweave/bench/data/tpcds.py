"""TPC-DS web_returns, as the published generator makes them.

pyarrow is imported where rows are read: a Dagster deployment takes the column names from here, and
loading its definitions must stay quick.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "web_returns"
KEY = ("wr_order_number", "wr_item_sk")
IDENTIFIERS = (
    "wr_returned_date_sk",
    "wr_returned_time_sk",
    "wr_item_sk",
    "wr_refunded_customer_sk",
    "wr_refunded_cdemo_sk",
    "wr_refunded_hdemo_sk",
    "wr_refunded_addr_sk",
    "wr_returning_customer_sk",
    "wr_returning_cdemo_sk",
    "wr_returning_hdemo_sk",
    "wr_returning_addr_sk",
    "wr_web_page_sk",
    "wr_reason_sk",
)
AMOUNTS = (
    "wr_return_amt",
    "wr_return_tax",
    "wr_return_amt_inc_tax",
    "wr_fee",
    "wr_return_ship_cost",
    "wr_refunded_cash",
    "wr_reversed_charge",
    "wr_account_credit",
    "wr_net_loss",
)

# Its main needs airline, which the generator's package calls optional.
_GENERATOR = "io.trino.tpcds:tpcds:1.4,io.airlift:airline:0.9"


class GeneratorError(RuntimeError):
    """The TPC-DS generator could not be fetched or did not run."""


def schema() -> pa.Schema:
    """The columns of web_returns, in the generator's order."""
    import pyarrow as pa

    return pa.schema(
        [(name, pa.int32()) for name in IDENTIFIERS]
        + [("wr_order_number", pa.int64()), ("wr_return_quantity", pa.int32())]
        + [(name, pa.decimal128(7, 2)) for name in AMOUNTS]
    )


def generate(directory: Path, scale: float) -> Path:
    """Run the generator.

    Args:
        directory: An existing directory for the file that it makes.
        scale: TPC-DS scale factor; 1 gives 71,763 returns.

    Returns:
        The file: a line for each return, its fields closed by `|`.

    Raises:
        GeneratorError: The generator could not be fetched or did not run.
    """
    # spark-submit runs any Java main with packages that Spark's own Ivy resolves, by the machine's
    # own Spark and Ivy settings: no Maven client is needed. No SparkContext is started. Spark's
    # newer guava serves the generator, whose own is too old to run on.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise GeneratorError("The TPC-DS generator needs pyspark, which is not installed.")
    home = Path(spec.origin).parent
    submit = [str(home / "bin" / "spark-submit"), "--master", "local[1]"]
    submit += ["--packages", _GENERATOR, "--exclude-packages", "com.google.guava:guava"]
    submit += ["--class", "io.trino.tpcds.Driver", "spark-internal"]
    arguments = ["--scale", f"{scale:g}", "--table", TABLE, "--directory", str(directory)]
    ran = subprocess.run(
        [*submit, *arguments, "--overwrite"],
        env={**os.environ, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    made = directory / f"{TABLE}.dat"
    if ran.returncode != 0 or not made.exists() or made.stat().st_size == 0:
        last_lines = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-15:])
        raise GeneratorError(f"The TPC-DS generator failed (exit {ran.returncode}):\n{last_lines}")
    return made


def batches(generated: Path) -> Iterator[pa.RecordBatch]:
    """The returns in a file that the generator made, in its order, without holding all of them."""
    import pyarrow.csv

    columns = schema()
    end = "end"  # the generator closes each line with a separator: an empty last column
    yield from pyarrow.csv.open_csv(
        generated,
        read_options=pyarrow.csv.ReadOptions(column_names=[*columns.names, end]),
        parse_options=pyarrow.csv.ParseOptions(delimiter="|"),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=columns, include_columns=columns.names
        ),
    )


def read(generated: Path) -> pa.Table:
    """The returns in a file that the generator made, as one table."""
    import pyarrow as pa

    return pa.Table.from_batches(batches(generated), schema()).combine_chunks()
