"""Every table feature of Delta has an answer of the engine; a feature without one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave.delta.jvm import jvm, singleton
from deltaweave.delta.log import features
from deltaweave.delta.log.table_log import TableLog
from deltaweave.verdict import YES, Verdict
from tests.builders import frame, write_table
from tests.oracles import newest_version

# By feature: whether a merge writes such tables, and whether its output may be committed on a newer
# version of a table that uses the feature.
ANSWERS = {
    "adaptiveMetadata-preview": (False, False),
    "allowColumnDefaults": (True, True),
    "appendOnly": (True, True),
    "catalogManaged": (False, False),
    "changeDataFeed": (True, True),
    "checkConstraints": (True, True),
    "checkpointProtection": (True, True),
    "clustering": (True, True),
    "columnMapping": (True, True),
    "coordinatedCommits-preview": (False, False),
    "deletionVectors": (True, True),
    "domainMetadata": (True, True),
    "generatedColumns": (True, True),
    "geospatial": (False, False),
    "geospatial-dev": (False, False),
    "icebergCompatV1": (False, False),
    "icebergCompatV2": (False, False),
    "icebergCompatV3": (False, False),
    "identityColumns": (True, False),  # values are given out by the transaction that lost
    "inCommitTimestamp": (True, True),
    "invariants": (True, True),
    "materializePartitionColumns": (True, True),
    "rowTracking": (True, True),
    "timestampNtz": (True, True),
    "typeWidening": (True, True),
    "typeWidening-preview": (True, True),
    "v2Checkpoint": (True, True),
    "vacuumProtocolCheck": (True, True),
    "variantShredding": (True, True),
    "variantShredding-preview": (True, True),
    "variantType": (True, True),
    "variantType-preview": (True, True),
}


def test_each_feature_that_delta_knows_has_an_answer(spark: SparkSession) -> None:
    delta = jvm(spark).org.apache.spark.sql.delta
    known = singleton(delta, "TableFeature").allSupportedFeaturesMap().keys().mkString(" ")
    # Delta of another release may know fewer.
    assert set(str(known).split()) <= {name.lower() for name in ANSWERS}
    merged = {
        name: (name in features.FEATURES, name in features.FEATURES and _may_rebase(name))
        for name in ANSWERS
    }
    assert merged == ANSWERS
    assert set(features.FEATURES) <= set(ANSWERS)


def _may_rebase(name: str) -> bool:
    return features.FEATURES[name].rebase.ok


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    properties = {"delta.enableDeletionVectors": "true"}
    write_table(spark, path, [(1, 10)], "k INT, v INT", properties=properties)
    return Table(spark, path)


def _rebase(table: Table) -> Verdict:
    return features.may_rebase(TableLog.of(table.spark, ["delta", table.path_or_name]).latest())


def test_a_feature_that_nobody_wrote_down_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _rebase(table) == YES
    monkeypatch.delitem(features.FEATURES, "deletionVectors")
    assert "deletionVectors" in _rebase(table).reason
    merge = table.merge(frame(table.spark, [(1, 11)], "k INT, v INT"), on="t.k = s.k")
    with pytest.raises(errors.UnsupportedFeatureError) as raised:
        merge.when_matched_update_all().execute()
    assert raised.value.features == ("deletionVectors",)
    assert newest_version(table.path_or_name) == 0


# Properties, and whether the output of a merge may be committed on a newer version.
PROPERTIES = {
    ("delta.checkpointInterval", "7"): True,
    ("delta.constraints.small", "v < 100"): True,
    ("owner", "accounting"): True,  # not Delta's
    ("delta.isolationLevel", "WriteSerializable"): True,
    ("delta.isolationLevel", "Serializable"): False,
    ("delta.ofALaterRelease", "true"): False,
}


@pytest.mark.parametrize(("pair", "expected"), PROPERTIES.items())
def test_output_is_committed_again_only_where_each_property_is_known(
    pair: tuple[str, str], expected: bool
) -> None:
    assert features.property_verdict(*pair).ok is expected
