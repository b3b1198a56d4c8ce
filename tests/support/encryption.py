"""Parquet's encryption with keys of the tests: a key service that Spark finds on its class path.

Janino, which Spark brings along, compiles it. Its "wrapped" keys are the keys themselves: these
tests ask whether files are encrypted, not by whom they can be read.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

FACTORY = "parquet.crypto.factory.class"
OF_PROPERTIES = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
_KEY_SERVICE = "deltaweave_tests.PlainKeyService"
_SOURCE = """
package deltaweave_tests;
public class PlainKeyService implements org.apache.parquet.crypto.keytools.KmsClient {
  public void initialize(org.apache.hadoop.conf.Configuration settings, String id, String url,
                         String token) {}
  public String wrapKey(byte[] key, String master) {
    return java.util.Base64.getEncoder().encodeToString(key);
  }
  public byte[] unwrapKey(String wrapped, String master) {
    return java.util.Base64.getDecoder().decode(wrapped);
  }
}
"""
SETTINGS = {FACTORY: OF_PROPERTIES, "parquet.encryption.kms.client.class": _KEY_SERVICE}
"""What a session needs to read encrypted files, or a table's properties to be written so."""

WHOLE_FILES = {"parquet.encryption.uniform.key": "master"}
ONE_COLUMN = {
    "parquet.encryption.footer.key": "master",
    "parquet.encryption.column.keys": "master:secret",
    "parquet.encryption.plaintext.footer": "true",  # other columns are read without keys
}


def add_key_service(spark: SparkSession, folder: Path) -> None:
    """Put the key service on the class paths of the driver and the executors."""
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()  # type: ignore[union-attr]
    compiler.cook(_SOURCE)
    jar = folder / "key_service.jar"
    with zipfile.ZipFile(jar, "w") as written:
        for name, content in dict(compiler.getBytecodes()).items():
            written.writestr(f"{name.replace('.', '/')}.class", bytes(content))
    spark.sql(f"ADD JAR '{jar}'")
