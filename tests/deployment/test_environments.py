from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping

import pytest
from dagster import DagsterInstance, Definitions, asset, in_process_executor
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
from pyspark.sql import SparkSession

from dagster_deltaweave import SparkDeltaIOManager, SparkResource
from deltaweave._session import local_conf
from deltaweave.errors import StatementError
from resources import environments
from resources.environments import EnvironmentVariableError

VARIABLES = (
    "DELTAWEAVE_ENV",
    "DELTAWEAVE_TABLES",
    "DELTAWEAVE_SPARK_MASTER",
    "DELTAWEAVE_SPARK_CONF",
    "DELTAWEAVE_DRIVER_HOST",
    "DELTAWEAVE_WARM",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)
CLUSTER = {
    "DELTAWEAVE_ENV": "cluster",
    "DELTAWEAVE_SPARK_MASTER": "spark://master:7077",
    "DELTAWEAVE_TABLES": "hdfs://lake/tables",
}
STORE = {
    "DELTAWEAVE_ENV": "object_store",
    "DELTAWEAVE_TABLES": "s3a://lake/tables",
    "AWS_REGION": "eu-central-1",
}
SECRET = "never-to-be-seen"
KEYS = {"AWS_ACCESS_KEY_ID": "visible", "AWS_SECRET_ACCESS_KEY": SECRET}


def choose(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name in VARIABLES:
        patch.delenv(name, raising=False)
    for name, value in variables.items():
        patch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "root", "conf"),
    [
        # local: nothing but what a session of our own has
        ({"DELTAWEAVE_LAKE": "/some/lake"}, "/some/lake/tables", {}),
        # cluster: the master's executors call the driver back, and many of them share the work
        (
            {**CLUSTER, "DELTAWEAVE_DRIVER_HOST": "driver"},
            "hdfs://lake/tables",
            {
                "spark.master": "spark://master:7077",
                "spark.driver.host": "driver",
                "spark.driver.bindAddress": "0.0.0.0",
                "spark.sql.shuffle.partitions": "200",
                "spark.databricks.delta.snapshotPartitions": "50",
                "spark.sql.sources.parallelPartitionDiscovery.parallelism": "10000",
            },
        ),
        # Amazon's S3, with the machine's role
        (
            STORE,
            "s3a://lake/tables",
            {
                "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0",
                "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
            },
        ),
        # another store that speaks S3; whatever Spark knows can be set
        (
            {
                **STORE,
                **KEYS,
                "AWS_ENDPOINT_URL": "http://store:9000",
                "DELTAWEAVE_SPARK_CONF": '{"spark.cores.max": 8, "spark.jars.packages": "a:b:1"}',
            },
            "s3a://lake/tables",
            {
                "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0,a:b:1",
                "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
                "spark.hadoop.fs.s3a.endpoint": "http://store:9000",
                "spark.hadoop.fs.s3a.path.style.access": "true",
                "spark.cores.max": "8",
            },
        ),
    ],
    ids=["local", "cluster", "S3", "another store"],
)
def test_an_environment_is_a_spark_and_a_place_for_tables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], root: str, conf: dict[str, str]
) -> None:
    choose(monkeypatch, variables)

    chosen = environments.resources()

    assert isinstance(chosen["spark"], SparkResource)
    assert chosen["spark"].spark_config == conf
    assert chosen["spark"].warm
    assert isinstance(chosen["io_manager"], SparkDeltaIOManager)
    assert chosen["io_manager"].root == root


def test_tables_of_a_store_may_be_merged_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, {**STORE, "DELTAWEAVE_SPARK_MASTER": "yarn", "DELTAWEAVE_WARM": "false"})

    spark = environments.resources()["spark"]

    assert spark.spark_config["spark.master"] == "yarn"
    assert spark.spark_config["spark.jars.packages"] == "org.apache.hadoop:hadoop-aws:3.5.0"
    assert not spark.warm


@pytest.mark.parametrize("chosen", [CLUSTER, STORE], ids=["cluster", "object_store"])
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_driver_whose_executors_are_of_this_machine_listens_on_loopback(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], master: str
) -> None:
    choose(monkeypatch, {**chosen, "DELTAWEAVE_SPARK_MASTER": master})

    conf = local_conf(environments.resources()["spark"].spark_config)

    assert conf["spark.master"] == master
    assert (conf["spark.driver.bindAddress"], conf["spark.driver.host"]) == ("127.0.0.1",) * 2
    assert conf["spark.sql.shuffle.partitions"] == "8"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DELTAWEAVE_ENV": "moon"}, "'moon'; known are cluster, local, object_store"),
        (
            {"DELTAWEAVE_ENV": "cluster"},
            "cluster needs DELTAWEAVE_SPARK_MASTER and DELTAWEAVE_TABLES",
        ),
        (
            {"DELTAWEAVE_ENV": "object_store"},
            "object_store needs DELTAWEAVE_TABLES and AWS_REGION;",
        ),
        # a store of one's own has no roles of machines
        (
            {**STORE, "AWS_ENDPOINT_URL": "http://store:9000"},
            "needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        ({**STORE, "AWS_SECRET_ACCESS_KEY": SECRET}, "needs AWS_ACCESS_KEY_ID;"),
        ({**STORE, "DELTAWEAVE_TABLES": "/tables"}, "'/tables'; the environment object_store"),
        ({"DELTAWEAVE_SPARK_CONF": "4g"}, "DELTAWEAVE_SPARK_CONF must be a JSON object"),
        ({"DELTAWEAVE_SPARK_CONF": "[1]"}, "DELTAWEAVE_SPARK_CONF must be a JSON object"),
        ({"DELTAWEAVE_WARM": "yes"}, "DELTAWEAVE_WARM is 'yes'"),
    ],
)
def test_what_is_missing_or_malformed_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    choose(monkeypatch, variables)

    with pytest.raises(EnvironmentVariableError) as raised:
        environments.resources()

    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "key",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.hadoop.fs.azure.account.key.paths.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.oauth2.client.secret",
        "spark.hadoop.fs.azure.account.oauth2.client.secret.filestore.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.sql.catalog.lake.credential",
        "spark.ssl.keyPassword",
    ],
)
def test_secrets_among_the_configuration_that_dagster_shows_are_refused(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    choose(monkeypatch, {"DELTAWEAVE_SPARK_CONF": json.dumps({key: SECRET})})
    nested = {"spark": {key.removeprefix("spark."): SECRET}}

    for loaded in (lambda: SparkResource(spark_config=nested), environments.resources):
        with pytest.raises(StatementError, match="spark_config holds secrets") as refused:
            loaded()
        told = "".join(traceback.format_exception(refused.value))
        assert key in told
        assert SECRET not in told


def test_what_only_says_where_secrets_are_is_no_secret() -> None:
    conf = {
        "spark.authenticate": "true",
        "spark.authenticate.secret.driver.file": "/etc/spark/secret",
        "spark.authenticate.secret.file": "/etc/spark/secret",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.example.Provider",
        "spark.hadoop.fs.azure.sas.token.provider.type.lake": "org.example.Provider",
        "spark.hadoop.fs.azure.enable.delegation.token": "true",
        "spark.hadoop.fs.s3a.delegation.token.binding": "org.example.Binding",
        "spark.hadoop.hadoop.security.token.service.use_ip": "false",
        "spark.kubernetes.authenticate.oauthTokenFile": "/var/run/token",
        "spark.kubernetes.driver.secretKeyRef.PASSWORD_FILE": "lake:file",
        "spark.kubernetes.driver.secrets.lake": "/etc/secrets",
        "spark.kubernetes.kerberos.tokenSecret.itemKey": "hadoop",
        "spark.yarn.keytab": "/etc/spark/keytab",
    }

    assert SparkResource(spark_config=conf).spark_config == conf


def test_credentials_are_in_nothing_that_dagster_shows_or_stores(
    spark: SparkSession,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The session is that of all tests: give its settings back.
    same = {
        key: spark.conf.get(key)
        for key in (
            "spark.sql.shuffle.partitions",
            "spark.databricks.delta.snapshotPartitions",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism",
        )
    }
    choose(monkeypatch, {**STORE, **KEYS})
    resources = environments.resources()

    @asset
    def version(spark: SparkResource) -> None:
        spark.session.range(1).count()

    defs = Definitions(assets=[version], resources=resources, executor=in_process_executor)
    with caplog.at_level(logging.DEBUG):
        run = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    for key, value in same.items():
        spark.conf.set(key, str(value))

    assert run.success
    shown = serialize_value(
        RepositorySnap.from_def(defs.get_repository_def(), defer_snapshots=False)
    )
    events = "".join(serialize_value(event) for event in instance.all_logs(run.run_id))
    record = instance.get_run_by_id(run.run_id)
    assert record is not None
    assert "s3a://lake/tables" in shown  # it is the resource's page
    assert "STEP_SUCCESS" in events
    for text in (shown, events, serialize_value(record), caplog.text, repr(resources)):
        assert SECRET not in text
