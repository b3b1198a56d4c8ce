import pytest

from deltaweave import errors
from deltaweave.delta.jvm import gateway


@pytest.fixture
def untested_release(monkeypatch):
    monkeypatch.setattr(gateway, "TESTED_VERSIONS", (("4.1.0", "4.3.0"),))
    monkeypatch.setattr(gateway, "_NAMES", {})


@pytest.mark.usefixtures("untested_release")
def test_an_untested_release_is_refused_with_the_versions_known(spark):
    with pytest.raises(errors.UnsupportedVersionError) as refusal:
        gateway.jvm(spark)
    message = str(refusal.value)
    assert "Spark 4.2.0 with Delta 4.4.0" in message  # what runs
    assert "Spark 4.1.0 with Delta 4.3.0" in message  # what was tested
    assert gateway.ALLOW_UNTESTED in message  # what to do


@pytest.mark.usefixtures("untested_release")
def test_an_untested_release_runs_with_the_override_and_a_warning(spark, monkeypatch, caplog):
    monkeypatch.setenv(gateway.ALLOW_UNTESTED, "1")
    assert gateway.jvm(spark) is not None
    assert "tested: Spark 4.1.0" in caplog.text


def test_the_release_in_use_is_tested(spark):
    gateway._check_versions(spark, gateway.jvm(spark))
