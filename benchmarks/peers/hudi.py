"""Apache Hudi as a peer of merge on read: its release and its upserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.spark_peer import SparkPeer, SqlUpsert

_OPERATION = "hoodie.spark.sql.insert.into.operation"


class Hudi(SparkPeer):
    """Hudi, on Spark 3.5."""

    def conf(self, tables: Path) -> Mapping[str, str]:
        """Return the settings that Hudi requires."""
        return {
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
            "spark.sql.warehouse.dir": str(tables),
        }

    def upsert(self, columns: Sequence[str], keys: Sequence[str]) -> SqlUpsert:
        """Return the SQL that creates a merge-on-read table and upserts into it.

        It has Hudi's default index (`SIMPLE`), which joins the changes with the keys of the files
        that may hold them. Its compaction does not run, and neither does ours.
        """
        table = "upserted"
        properties = {"type": "mor", "primaryKey": ",".join(keys), "hoodie.compact.inline": "false"}
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        return SqlUpsert(
            table,
            (
                f"DROP TABLE IF EXISTS {table} PURGE",
                f"SET {_OPERATION} = bulk_insert",
                f"CREATE TABLE {table} USING hudi TBLPROPERTIES ({listed}) AS SELECT * FROM base",
                f"SET {_OPERATION} = upsert",
            ),
            f"INSERT INTO {table} SELECT {', '.join(columns)} FROM changes",
        )


# 1.2.0 is the newest release that could be fetched from Maven Central here, and only as a bundle
# for Spark 3.5: no bundle for Spark 4 and no bundle of 1.2.1 could be fetched. PySpark 3.5 has the
# bundle's Scala version, 2.12, and the benchmark uses its release 3.5.5.
HUDI = Hudi("hudi", "Hudi", "pyspark==3.5.5", "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0")
