"""Settings of S3A as settings of Arrow, or the reason why only Spark opens the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.delta.files import object_stores
from deltaweave.delta.jvm import Jvm

S3A = "org.apache.hadoop.fs.s3a"
KEYS = {"access.key": "visible", "secret.key": "hidden"}
OF_KEYS = {"access_key": "visible", "secret_key": "hidden"}
AMAZON = {**KEYS, "endpoint.region": "eu-central-1"}
OWN = {**KEYS, "endpoint": "http://store:9000", "path.style.access": "true"}
TEMPORARY = {**AMAZON, "session.token": "passing"}
BOTH = f"{S3A}.SimpleAWSCredentialsProvider,\n  {S3A}.TemporaryAWSCredentialsProvider"


def arguments(spark: SparkSession, settings: Mapping[str, str]) -> Mapping[str, Any] | str:
    configuration = Jvm.of(spark).org.apache.hadoop.conf.Configuration()
    for name, value in settings.items():
        configuration.set(name if "security" in name else f"fs.s3a.{name}", value)
    found = object_stores.settings_by(spark, configuration)
    return found.arguments if found.verdict.ok else found.verdict.reason


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Amazon's stores, whose host is that of the region
        (AMAZON, {**OF_KEYS, "region": "eu-central-1", "scheme": "https"}),
        ({**AMAZON, "endpoint": "s3.amazonaws.com"}, {"region": "eu-central-1"}),
        (TEMPORARY, {**OF_KEYS, "session_token": "passing"}),
        # a store of one's own
        (
            OWN,
            {
                **OF_KEYS,
                "scheme": "http",
                "endpoint_override": "store:9000",
                "force_virtual_addressing": False,
                "region": "us-east-2",  # the default of S3A
            },
        ),
        (
            {**KEYS, "endpoint": "store", "endpoint.region": "here"},
            {"endpoint_override": "store", "force_virtual_addressing": True, "region": "here"},
        ),
        ({**OWN, "endpoint": "store:9000", "connection.ssl.enabled": "false"}, {"scheme": "http"}),
        ({**OWN, "endpoint": " http://10.0.0.1:9000/ ", "path.style.access": " true "}, OF_KEYS),
        # S3A's client of Amazon's stores is encrypted whatever is set
        ({**AMAZON, "connection.ssl.enabled": "false"}, {"scheme": "https"}),
        ({**AMAZON, "endpoint": "http://s3.amazonaws.com"}, {"scheme": "https"}),
        # how S3A works is its own affair, and so is what holds for another bucket
        ({**AMAZON, "threads.max": "7", "bucket.other.encryption.algorithm": "SSE-KMS"}, OF_KEYS),
        # a provider before this one would find nothing
        (
            {**AMAZON, "aws.credentials.provider": f"{S3A}.SimpleAWSCredentialsProvider"},
            OF_KEYS,
        ),
    ],
)
def test_settings_with_keys_are_those_of_arrow(
    spark: SparkSession, settings: Mapping[str, str], expected: Mapping[str, Any]
) -> None:
    found = arguments(spark, settings)

    assert isinstance(found, dict), found
    assert expected.items() <= found.items()
    assert ("session_token" in found) == ("session_token" in expected)
    has_own_host = "endpoint" in settings and "amazonaws" not in settings["endpoint"]
    assert ("endpoint_override" in found) == has_own_host


def test_keys_are_in_no_log_of_calls_to_the_jvm(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Jvm.of(spark).org.apache.hadoop.conf.Configuration()
    for name, value in {**AMAZON, "bucket.other.secret.key": "hidden too"}.items():
        configuration.set(f"fs.s3a.{name}", value)
    with caplog.at_level(logging.DEBUG, "py4j"):
        found = object_stores.settings_by(spark, configuration)

    assert found.verdict.ok
    assert "Answer received" in caplog.text
    assert "hidden" not in caplog.text


def test_the_first_provider_that_finds_keys_gives_them(spark: SparkSession) -> None:
    found = arguments(spark, {**TEMPORARY, "aws.credentials.provider": BOTH})

    assert isinstance(found, dict)
    assert "session_token" not in found


@pytest.mark.parametrize(
    ("settings", "why_not"),
    [
        ({"endpoint.region": "eu-central-1"}, "keys do not come from fs.s3a.access.key"),
        ({**AMAZON, "secret.key": ""}, "keys do not come from fs.s3a.access.key"),
        (
            {**AMAZON, "aws.credentials.provider": f"{S3A}.auth.AssumedRoleCredentialProvider"},
            "keys do not come from fs.s3a.access.key",
        ),
        ({**AMAZON, "hadoop.security.credential.provider.path": "jceks://x"}, "provider.path is"),
        (
            {**AMAZON, "hadoop.security.credential.clear-text-fallback": "false"},
            "clear-text-fallback is false",
        ),
        (KEYS, "fs.s3a.endpoint.region is not set"),
        ({**OWN, "endpoint": "https://s3.fr-par.scw.cloud"}, "endpoint.region is not set"),
        ({**KEYS, "endpoint": "s3.eu-west-1.amazonaws.com"}, "endpoint.region is not set"),
        ({**OWN, "endpoint": "gopher://store"}, "has no client for it"),
        ({**AMAZON, "multipart.uploads.enabled": "false"}, "multipart.uploads.enabled is set"),
        ({**AMAZON, "path.style.access": "true"}, "fs.s3a.path.style.access is true"),
        ({**AMAZON, "encryption.algorithm": "SSE-KMS"}, "fs.s3a.encryption.algorithm is set"),
        ({**AMAZON, "acl.default": "BucketOwnerFullControl"}, "fs.s3a.acl.default is set"),
        ({**AMAZON, "proxy.host": "proxy"}, "fs.s3a.proxy.host is set"),
        ({**AMAZON, "requester.pays.enabled": "true"}, "fs.s3a.requester.pays.enabled is set"),
        ({**AMAZON, "endpoint.fips": "true"}, "fs.s3a.endpoint.fips is set"),
        ({**AMAZON, "accesspoint.arn": "arn:x"}, "fs.s3a.accesspoint.arn is set"),
        ({**AMAZON, "create.storage.class": "glacier"}, "fs.s3a.create.storage.class is set"),
        ({**AMAZON, "what.comes.next": "x"}, "fs.s3a.what.comes.next is set"),
    ],
)
def test_any_other_setting_leaves_the_store_to_spark(
    spark: SparkSession, settings: Mapping[str, str], why_not: str
) -> None:
    found = arguments(spark, settings)

    assert isinstance(found, str)
    assert why_not in found
    assert "hidden" not in found
