"""TPC-DS web_returns, as the published generator makes them.

Only the functions that read rows import pyarrow: Dagster definitions take the column names from
this module, and they must load quickly.
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

# The generator's main class needs airline, which its package declares as optional.
_GENERATOR = "io.trino.tpcds:tpcds:1.4,io.airlift:airline:0.9"


class GeneratorError(RuntimeError):
    """The TPC-DS generator could not be fetched or did not run."""


def schema() -> pa.Schema:
    """Return the columns of web_returns, in the generator's order."""
    import pyarrow as pa

    return pa.schema(
        [(name, pa.int32()) for name in IDENTIFIERS]
        + [("wr_order_number", pa.int64()), ("wr_return_quantity", pa.int32())]
        + [(name, pa.decimal128(7, 2)) for name in AMOUNTS]
    )


def generate(directory: Path, scale: float) -> Path:
    """Run the generator.

    Args:
        directory: An existing directory for the generated file.
        scale: TPC-DS scale factor; 1 gives 71,763 returns.

    Returns:
        The file: a line for each return, with `|` after each field.

    Raises:
        GeneratorError: The generator could not be fetched or did not run.
    """
    # spark-submit runs any Java main class with packages that Spark's Ivy resolves by the machine's
    # Spark and Ivy settings, so no Maven client is needed. It starts no SparkContext. The generator
    # runs on Spark's newer guava, because its own is too old.
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
    """Yield the returns in a generated file, in its order, in batches."""
    import pyarrow.csv

    columns = schema()
    end = "end"  # the separator at the end of each line makes an empty last column
    yield from pyarrow.csv.open_csv(
        generated,
        read_options=pyarrow.csv.ReadOptions(column_names=[*columns.names, end]),
        parse_options=pyarrow.csv.ParseOptions(delimiter="|"),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=columns, include_columns=columns.names
        ),
    )


def read(generated: Path) -> pa.Table:
    """Read the returns in a generated file as one table."""
    import pyarrow as pa

    return pa.Table.from_batches(batches(generated), schema()).combine_chunks()
