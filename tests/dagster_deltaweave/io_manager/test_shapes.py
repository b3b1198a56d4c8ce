"""Assets of every shape are stored and loaded, and what is no asset is kept for the next op."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetOut,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    Definitions,
    In,
    InputContext,
    IOManager,
    IOManagerDefinition,
    MaterializeResult,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    OpExecutionContext,
    Output,
    OutputContext,
    RetryPolicy,
    RetryRequested,
    StaticPartitionsDefinition,
    asset,
    graph_asset,
    graph_multi_asset,
    job,
    load_assets_from_modules,
    map_asset_specs,
    materialize,
    multi_asset,
    op,
)
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import column

from dagster_deltaweave import (
    Changes,
    MergeAssetComponent,
    SparkDeltaIOManager,
    SparkResource,
    TypeHandler,
    build_commit_observer,
    build_table_checks,
    build_upkeep_job,
    merge_asset,
    partition_keys,
    partition_tags,
)
from dagster_deltaweave.components.table_component import SqlSource
from dagster_deltaweave.io_manager import delta_io_manager
from dagster_deltaweave.io_manager.delta_io_manager import OpOutputs
from dagster_deltaweave.io_manager.frames import without_empty_partitions
from deltaweave import Table
from deltaweave.errors import SourceError, StatementError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows
from tests.support.sensor_ticks import tick

AssetTable = Callable[[str], Table]
LETTERS = StaticPartitionsDefinition(["a", "b"])
MERGED = {"deltaweave/write": "merge", "deltaweave/keys": "id"}


def ops_of(spark: SparkSession) -> tuple[Any, Any]:
    """An op that gives a DataFrame, and one that takes it and a plain value."""

    @op
    def read() -> DataFrame:
        return spark.createDataFrame([(1, "a"), (2, "b")], "id INT, letter STRING")

    @op
    def cut(some: DataFrame, at: int) -> DataFrame:
        return some.where(f"id < {at}")

    return read, cut


@op
def limit() -> int:
    return 2  # kept in a file, as Dagster's default IO manager does


@pytest.mark.minutes
def test_ops_of_a_graph_take_each_others_outputs_and_not_their_tables(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    read, cut = ops_of(spark)
    appended = {"deltaweave/write": "append"}

    @graph_multi_asset(outs={"one": AssetOut(metadata=appended), "two": AssetOut(metadata=MERGED)})
    def both():  # type: ignore[no-untyped-def]
        some = read()
        return {"one": some, "two": cut(some, limit())}

    for _ in range(2):
        run(both)

    assert rows(table("two")) == [(1, "a")]
    assert rows(table("one")) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]


class Frame:
    """Stands for a DataFrame of Spark, which stays in the process of its op."""


@pytest.mark.parametrize(
    ("first", "second"), [(Frame(), [1]), (Frame(), None), ([1], [2]), ([1], Frame())]
)
def test_an_op_that_is_tried_again_hands_on_its_last_output(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, first: Any, second: Any
) -> None:
    class Ops(IOManager):
        outputs = OpOutputs()

        def handle_output(self, context: OutputContext, obj: object) -> None:
            self.outputs.keep(context, obj)

        def load_input(self, context: InputContext) -> Any:
            return self.outputs.load(context)

    @op(retry_policy=RetryPolicy(max_retries=1))
    def give(context: OpExecutionContext) -> Iterator[Output[Any]]:
        yield Output([first, second][context.retry_number])
        if context.retry_number == 0:
            raise OSError("it cannot go on")

    @op
    def take(some: Any) -> None:
        taken.append(some)
        if len(taken) == 1:
            Ops.outputs.clear()  # as in the process of another step
            raise RetryRequested

    @job(resource_defs={"io_manager": IOManagerDefinition.hardcoded_io_manager(Ops())})
    def both() -> None:
        take(give())

    monkeypatch.setattr(delta_io_manager, "DataFrame", Frame)
    taken: list[Any] = []
    done = both.execute_in_process(instance=instance, raise_on_error=False)
    is_in_process = isinstance(second, Frame)
    assert taken == [second] * (1 if is_in_process else 2)
    assert done.success != is_in_process
    if is_in_process:
        assert "stays in the process of the step" in failure_messages(done)


@pytest.mark.parametrize(("value", "is_kept"), [("rows", True), (None, True), ("rows", False)])
def test_what_an_op_of_a_graph_gave_is_never_replaced_by_its_table(
    instance: DagsterInstance, value: Any, is_kept: bool
) -> None:
    class Tables(IOManager):
        outputs = OpOutputs()

        def handle_output(self, context: OutputContext, obj: object) -> None:
            self.outputs.keep_in_graph(context, obj)
            if not is_kept:
                self.outputs.clear()  # as another process, or the run that this one goes on from

        def load_input(self, context: InputContext) -> Any:
            found = self.outputs.in_graph(context)
            return found[0] if found else "all rows of the table"

    @op
    def read() -> Any:
        return value

    @op
    def take(some: Any) -> Any:
        taken.append(some)
        return some

    @graph_multi_asset(outs={"one": AssetOut(), "two": AssetOut()})
    def both():  # type: ignore[no-untyped-def]
        some = read()
        return {"one": some, "two": take(some)}

    taken: list[Any] = []
    result = materialize(
        [both], resources={"io_manager": Tables()}, instance=instance, raise_on_error=False
    )
    assert taken == ([value] if is_kept else [])
    if not is_kept:
        assert "stays in the process of the step" in failure_messages(result)


class Lines(Iterator[str]):
    """Stands for a type of a user's handler that can be read once."""

    def __next__(self) -> str:
        raise StopIteration


def reader() -> pa.RecordBatchReader:
    return pa.table({"id": [1, 2, 3]}).to_reader()


def ids_read(value: Any) -> Any:
    """Read the ids of a value, as the step that stores it, or takes it, does."""
    if isinstance(value, dict):
        return {key: ids_read(each) for key, each in value.items()}
    if isinstance(value, Changes):
        return ids_read(value.rows)
    return value.read_all()["id"].to_pylist() if hasattr(value, "read_all") else list(value)


@pytest.mark.parametrize(
    ("read_once", "taken"),
    [
        (reader, [1, 2, 3]),
        (lambda: {"a": reader(), "b": None}, {"a": [1, 2, 3]}),
        (lambda: Changes(reader()), [1, 2, 3]),
        (lambda: [1, 2, 3], [1, 2, 3]),
        (lambda: iter([1, 2, 3]), "the list_iterator that another op"),
        (lambda: (each for each in [1, 2, 3]), "the generator that another op"),
        (lambda: {"a": iter([1, 2, 3])}, "the list_iterator that another op"),
        (Lines, "the Lines that another op"),
    ],
)
def test_rows_of_a_graph_that_can_be_read_once_are_not_lost(
    instance: DagsterInstance, read_once: Callable[[], Any], taken: Any
) -> None:
    class Tables(IOManager):
        outputs = OpOutputs()

        def handle_output(self, context: OutputContext, obj: Any) -> None:
            obj = self.outputs.keep_in_graph(context, obj)
            if isinstance(obj, dict):
                obj = without_empty_partitions(obj, context.asset_key, ["a", "b"])
            found.append(ids_read(obj))

        def load_input(self, context: InputContext) -> Any:
            [value] = self.outputs.in_graph(context)
            return value

    @op
    def first() -> Output[Any]:
        return Output(read_once())  # Dagster takes an iterator for events

    @op
    def second(some: Any) -> Any:
        return some

    @graph_multi_asset(outs={"one": AssetOut(), "two": AssetOut(), "three": AssetOut()})
    def all_three():  # type: ignore[no-untyped-def]
        some = first()
        return {"one": some, "two": second(some), "three": second.alias("third")(some)}

    found: list[Any] = []
    resources = {"io_manager": Tables()}
    result = materialize([all_three], resources=resources, instance=instance, raise_on_error=False)
    if isinstance(taken, str):
        failed = [each for each in result.all_events if each.is_step_failure]
        causes = [str(each.step_failure_data.error) for each in failed]
        assert [taken in each for each in causes] == [True, True]
        assert len(found) == 1
    else:
        assert found == [taken] * 3


@pytest.mark.parametrize(
    ("value", "partition", "problem"),
    [
        ({"a": None}, None, "rows of a, which are not partitions of this run.*has no partitions"),
        ({"b": None}, "a", "rows of b, which are not partitions of this run.*The run has a:"),
        ({"a": None, "b": None}, "a", "rows of b, which are not partitions of this run"),
        ({"a": None}, "a", None),
        ({}, "a", None),
        (None, None, None),
    ],
)
def test_none_is_refused_for_what_is_no_partition_of_the_run(
    instance: DagsterInstance, value: Any, partition: str | None, problem: str | None
) -> None:
    @asset(partitions_def=LETTERS if partition else None)
    def letters():  # type: ignore[no-untyped-def]
        return value

    nowhere = SparkDeltaIOManager(root="/nowhere", spark=SparkResource(), schema="of_none")
    result = materialize(
        [letters],
        resources={"io_manager": nowhere},
        instance=instance,
        partition_key=partition,
        raise_on_error=False,
    )

    assert result.success == (problem is None)
    if problem is not None:
        assert re.search(problem, failure_messages(result), re.DOTALL)


def of_each_shape(spark: SparkSession) -> dict[str, AssetsDefinition]:
    """Assets of one table each, by its key; each has the row (1, 'a')."""
    read, cut = ops_of(spark)

    def row() -> DataFrame:
        return spark.sql("SELECT 1 AS id, 'a' AS letter")

    @asset
    def plain():  # type: ignore[no-untyped-def]
        return row()

    def merged(name: str) -> AssetsDefinition:
        return merge_asset(keys=["id"], name=name)(row)

    @multi_asset(
        outs={"chosen": AssetOut(metadata=MERGED), "left_out": AssetOut(is_required=False)},
        can_subset=True,
    )
    def some():  # type: ignore[no-untyped-def]
        yield Output(row(), "chosen")

    @multi_asset(
        outs={key: AssetOut(metadata=MERGED) for key in ("lettered", "beside")}, can_subset=True
    )
    def by_letter(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        yield Output(row().where(column("letter").isin(partition_keys(context))), "lettered")
        yield Output(row(), "beside")

    def with_letters(spec: AssetSpec) -> AssetSpec:
        is_lettered = spec.key == AssetKey("lettered")
        return spec.replace_attributes(partitions_def=LETTERS) if is_lettered else spec

    [by_letter] = map_asset_specs(with_letters, [by_letter])

    @graph_asset(metadata=MERGED)
    def graph():  # type: ignore[no-untyped-def]
        return cut(read(), limit())

    @graph_multi_asset(outs={"of_graph": AssetOut(metadata=MERGED)})
    def graphs():  # type: ignore[no-untyped-def]
        return {"of_graph": cut(read(), limit())}

    module = ModuleType("declared")
    module.prefixed = merged("prefixed")  # type: ignore[attr-defined]
    [prefixed] = load_assets_from_modules([module], key_prefix="east")
    assert isinstance(prefixed, AssetsDefinition)
    [mapped] = map_asset_specs(
        lambda spec: spec.replace_attributes(owners=["team:sales"]), [merged("mapped")]
    )
    [declared] = MergeAssetComponent(
        asset=AssetSpec("declared"),
        keys=["id"],
        source=SqlSource(sql="SELECT 1 AS id, 'a' AS letter"),
    ).asset_definitions()
    return {
        "plain": plain,
        "merged": merged("merged"),
        "chosen": some,
        "lettered": by_letter,
        "graph": graph,
        "of_graph": graphs,
        "east/prefixed": prefixed,
        "rekeyed": merged("named").with_attributes(
            asset_key_replacements={AssetKey("named"): AssetKey("rekeyed")}
        ),
        "mapped": mapped,
        "declared": declared,
    }


@pytest.mark.minutes
def test_assets_of_each_shape_are_stored_loaded_checked_and_maintained(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    resources: dict[str, Any],
    instance: DagsterInstance,
) -> None:
    """Assets of each shape are observed, too."""
    shapes = of_each_shape(spark)
    loaded: dict[str, list[Any]] = {}
    external = AssetSpec("external", metadata={"deltaweave/table": table("of_others").path_or_name})
    table("of_others").create_if_missing("id INT, letter STRING")
    table("of_others").write(spark.sql("SELECT 1 AS id, 'a' AS letter"), "append")
    keys = [*shapes, "external"]

    @asset(ins={f"at_{at}": AssetIn(key=key.split("/")) for at, key in enumerate(keys)})
    def downstream(**inputs: Any) -> None:
        found = {key: inputs[f"at_{at}"] for at, key in enumerate(keys)}
        loaded.update({key: [tuple(row) for row in each.collect()] for key, each in found.items()})

    named: list[Any] = [*shapes, external]  # keys, and what names the table of others
    checks = build_table_checks(named, unique_key=["id"])
    everything: list[Any] = [*shapes.values(), external, downstream, *checks]
    result = run(
        *everything,
        partition="a",
        selection=(AssetSelection.all() - AssetSelection.assets("left_out"))
        | AssetSelection.all_asset_checks(),
    )

    assert loaded == {key: [(1, "a")] for key in keys}
    assert rows(table("beside")) == [(1, "a")]  # without partitions
    passed = [each for each in result.get_asset_check_evaluations() if each.passed]
    assert {each.asset_key.to_user_string() for each in passed} == set(keys)

    observer = build_commit_observer(name="commits", tables=named)
    defs = Definitions(assets=[*shapes.values(), external], sensors=[observer], resources=resources)
    first = tick(defs, instance)
    one = pa.table({"id": pa.array([9], pa.int32()), "letter": ["z"]})
    for key in keys:
        path = table("of_others" if key == "external" else key).path_or_name
        write_deltalake(path, one, mode="append")
    events = tick(defs, instance, first.cursor).asset_events
    observed = [each for each in events if isinstance(each, AssetObservation)]
    assert {each.asset_key.to_user_string() for each in observed} == set(keys)
    # A commit is of no partition of an asset, so nothing materializes a partitioned one.
    made = [each for each in events if isinstance(each, AssetMaterialization)]
    assert {each.asset_key.to_user_string() for each in made} == set(keys) - {"lettered"}

    job = build_upkeep_job(name="upkeep", tables=named, operations=["statistics"])
    kept = job.execute_in_process(resources=resources, instance=instance)
    seen = [each.asset_observation_data for each in kept.get_asset_observation_events()]
    assert {each.asset_observation.asset_key.to_user_string() for each in seen} == set(keys)


@pytest.mark.minutes
def test_rows_of_several_dimensions_are_stored_and_loaded(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    numbers = StaticPartitionsDefinition(["1", "2"])
    both = MultiPartitionsDefinition({"letter": LETTERS, "n": numbers})
    loaded: list[Any] = []

    @asset(partitions_def=both, metadata={"partition_expr": {"letter": "letter", "n": "n"}})
    def counted(context):  # type: ignore[no-untyped-def]
        return spark.createDataFrame(
            [tuple(key.split("|")) for key in partition_keys(context)], "letter STRING, n STRING"
        )

    @asset(partitions_def=LETTERS)
    def of_letter(counted: DataFrame) -> None:
        loaded.append(rows_of(counted))

    def rows_of(some: DataFrame) -> list[Any]:
        return sorted(tuple(row) for row in some.collect())

    run(counted, tags=partition_tags(["a|1", "a|2", "b|1"]))
    run(counted, partition=MultiPartitionKey({"letter": "b", "n": "1"}))
    run(counted, of_letter, selection=[of_letter], partition="a")

    assert rows(table("counted")) == [("a", "1"), ("a", "2"), ("b", "1")]
    assert loaded == [[("a", "1"), ("a", "2")]]


@pytest.mark.minutes
def test_a_plain_asset_is_written_as_its_io_manager_or_output_says(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    resources: dict[str, Any],
    instance: DagsterInstance,
) -> None:
    modes: list[Any] = [None, "append", "truncate", {}]

    @asset
    def numbers():  # type: ignore[no-untyped-def]
        mode = modes.pop(0)
        if mode == {}:
            return mode
        some = spark.sql("SELECT 1 AS id")
        return some if mode is None else MaterializeResult(value=some, metadata={"mode": mode})

    @asset(partitions_def=LETTERS, metadata={"partition_expr": "letter"})
    def letters(context):  # type: ignore[no-untyped-def]
        some = [(key,) for key in partition_keys(context) for _ in range(2)]
        return spark.createDataFrame(some, "letter STRING").coalesce(1)

    @asset(partitions_def=LETTERS)
    def unknown():  # type: ignore[no-untyped-def]
        return spark.sql("SELECT 'a' AS letter")

    run(numbers)
    run(numbers)
    assert rows(table("numbers")) == [(1,), (1,)]
    with pytest.raises(StatementError, match=r"metadata mode.*truncate"):
        run(numbers)
    with pytest.raises(SourceError, match="returned dict, which is not a table"):
        run(numbers)
    run(letters, tags=partition_tags(["a", "b"]))
    run(letters, partition="a")  # which one file has together with the other
    assert rows(table("letters")) == [("a",), ("a",), ("b",), ("b",)]
    event = instance.get_latest_materialization_event(letters.key)
    assert event is not None
    assert event.asset_materialization is not None
    counts = event.asset_materialization.metadata
    assert counts["dagster/partition_row_count"].value == 2
    assert counts["dagster/row_count"].value == 4
    with pytest.raises(StatementError, match="nothing says which rows a partition has"):
        run(unknown, partition="a")

    tables = resources["io_manager"]
    strict = SparkDeltaIOManager(root=tables.root, spark=tables.spark, mode="error")
    modes.append(None)
    with pytest.raises(StatementError, match="numbers does not say how its rows are stored"):
        materialize([numbers], resources={**resources, "io_manager": strict}, instance=instance)
    assert rows(table("numbers")) == [(1,), (1,)]


@pytest.mark.minutes
def test_the_mode_of_an_output_does_not_change_what_an_asset_declares(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @asset(metadata={"deltaweave/write": "append"})
    def numbers():  # type: ignore[no-untyped-def]
        return MaterializeResult(value=spark.sql("SELECT 1 AS id"), metadata={"mode": "overwrite"})

    run(numbers)
    run(numbers)
    assert rows(table("numbers")) == [(1,), (1,)]


class Ids(list[int]):
    """A type that the IO manager does not know."""


class IdsByName(dict[str, int]):
    """A mapping that is not one of partitions."""


class IdsHandler(TypeHandler):
    """Stores them as a column."""

    @property
    def supported_types(self) -> Sequence[type[object]]:
        return [Ids, IdsByName]

    def handle_output(self, context: OutputContext, obj: Any, spark: SparkSession) -> DataFrame:
        ids = obj.values() if isinstance(obj, IdsByName) else obj
        return spark.createDataFrame([(each,) for each in ids], "id INT")

    def load_input(self, context: InputContext, rows: DataFrame) -> Any:
        return Ids(row.id for row in rows.collect())


class LakeOfIds(SparkDeltaIOManager):
    @staticmethod
    def type_handlers() -> Sequence[TypeHandler]:
        return [IdsHandler()]


@pytest.mark.minutes
def test_a_subclass_stores_and_loads_further_types(
    spark: SparkSession, table: AssetTable, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    loaded: list[Any] = []

    @asset
    def ids() -> Ids:
        return Ids([1, 2])

    @asset
    def by_name() -> IdsByName:
        return IdsByName(a=1, b=2)

    @asset
    def downstream(ids: Ids) -> None:
        loaded.append(ids)

    tables = resources["io_manager"]
    lake = {"io_manager": LakeOfIds(root=tables.root, spark=tables.spark)}
    materialize([ids, by_name, downstream], resources=lake, instance=instance)

    assert rows(table("ids")) == rows(table("by_name")) == [(1,), (2,)]
    assert (type(loaded[0]), sorted(loaded[0])) == (Ids, [1, 2])


@pytest.mark.minutes
def test_ops_of_graph_assets_and_functions_of_several_read_whole_tables(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """They cannot record which touched rows they have applied, or may lack different ones."""

    @asset
    def upstream() -> DataFrame:
        return spark.sql("SELECT 1 AS id")

    @op(ins={"touched": In(metadata={"deltaweave/read": "touched"})})
    def apply(touched: Any) -> Any:
        return touched.rows

    @graph_asset(metadata=MERGED)
    def one(upstream):  # type: ignore[no-untyped-def]
        return apply(upstream)

    run(upstream)
    with pytest.raises(SourceError, match="an op of a graph asset cannot read touched rows"):
        run(upstream, one, selection=[one])

    @multi_asset(
        outs={name: AssetOut(metadata=MERGED, is_required=False) for name in ("two", "three")},
        ins={"upstream": AssetIn(metadata={"deltaweave/read": "touched"})},
        can_subset=True,
    )
    def several(context: AssetExecutionContext, upstream: Any):  # type: ignore[no-untyped-def]
        for name in context.selected_output_names:
            yield Output(Changes(upstream.added, applied=upstream), name)

    with pytest.raises(SourceError, match=r"tables \(three, two\) cannot read touched rows"):
        run(upstream, several, selection=[several])
    run(upstream, several, selection=["two"])
    assert rows(table("two")) == [(1,)]


def test_outputs_of_op_jobs_are_kept_as_by_the_default_io_manager(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    read, cut = ops_of(spark)
    seen: list[Any] = []

    @op
    def look(some: DataFrame, number: int) -> None:
        seen.append((some.count(), number))

    @op
    def several(some: DataFrame) -> Any:
        return {"here": [some], "at": (1, some)}

    @op
    def look_into(some: Any) -> None:
        seen.append((some["here"][0].count(), some["at"][0]))

    @job
    def of_ops() -> None:
        number = limit()
        some = cut(read(), number)
        look(some, number)
        look_into(several(some))

    result = of_ops.execute_in_process(resources=resources, instance=instance)

    assert result.success
    assert sorted(seen) == [(1, 1), (1, 2)]
