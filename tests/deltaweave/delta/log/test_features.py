"""Every table feature of Delta has an answer of the engine; a feature without one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave._validation import YES, Verdict
from deltaweave.delta.jvm import Jvm
from deltaweave.delta.log import features
from deltaweave.delta.log.table_log import TableLog
from tests.builders import frame, write_table
from tests.support.oracles import newest_version

# By feature: whether a merge writes such tables, and where a table uses the feature, whether the
# local backend does, whether Arrow copies and writes its files, and whether a merge's output may be
# committed on a newer version.
ANSWERS = {
    "adaptiveMetadata-preview": (False, False, False, False),
    "allowColumnDefaults": (True, True, True, True),
    "appendOnly": (True, True, True, True),
    "catalogManaged": (False, False, False, False),
    "changeDataFeed": (True, True, True, True),
    "checkConstraints": (True, True, True, True),
    "checkpointProtection": (True, True, True, True),
    "clustering": (True, True, True, True),
    "columnMapping": (True, False, False, True),
    "coordinatedCommits-preview": (False, False, False, False),
    "deletionVectors": (True, True, True, True),
    "domainMetadata": (True, True, True, True),
    "generatedColumns": (True, False, False, True),
    "geospatial": (False, False, False, False),
    "geospatial-dev": (False, False, False, False),
    "icebergCompatV1": (False, False, False, False),
    "icebergCompatV2": (False, False, False, False),
    "icebergCompatV3": (False, False, False, False),
    # Values are given out by the transaction that lost.
    "identityColumns": (True, False, True, False),
    "inCommitTimestamp": (True, True, True, True),
    "invariants": (True, True, True, True),
    "materializePartitionColumns": (True, False, False, True),
    "rowTracking": (True, False, True, True),
    "timestampNtz": (True, True, True, True),
    "typeWidening": (True, True, True, True),
    "typeWidening-preview": (True, True, True, True),
    "v2Checkpoint": (True, True, True, True),
    "vacuumProtocolCheck": (True, True, True, True),
    "variantShredding": (True, True, True, True),
    "variantShredding-preview": (True, True, True, True),
    "variantType": (True, True, True, True),
    "variantType-preview": (True, True, True, True),
}


def test_each_feature_that_delta_knows_has_an_answer(spark: SparkSession) -> None:
    jvm = Jvm.of(spark)
    known = jvm.singleton(jvm.delta, "TableFeature").allSupportedFeaturesMap().keys().mkString(" ")
    # Delta of another release may know fewer.
    assert set(str(known).split()) <= {name.lower() for name in ANSWERS}
    assert {name: _answers(name) for name in ANSWERS} == ANSWERS
    assert set(features.FEATURES) <= set(ANSWERS)


def _answers(name: str) -> tuple[bool, bool, bool, bool]:
    feature = features.FEATURES.get(name)
    if feature is None:
        return False, False, False, False
    return True, feature.local.ok, feature.in_place.ok, feature.rebase.ok


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
