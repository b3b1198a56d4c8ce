"""Lets a step wait for older partitions before it does anything else.

Dagster calls nothing of the platform before it loads a step's inputs. So the first input that the
IO manager of tables loads makes the step wait, and an asset without such inputs waits before its
function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import DagsterInvariantViolationError, InputContext, OpDefinition

from dagster_deltaweave.dagster_private import StepOutputHandle

if TYPE_CHECKING:
    from dagster import OutputContext


def wait_before_inputs(context: InputContext) -> None:
    """Let the step that loads an input wait for older partitions of the assets that it makes."""
    try:
        step = context.step_context
        asset = step.assets_def
    except DagsterInvariantViolationError:  # a value is loaded outside of a run
        return
    if asset is None or not isinstance(asset.node_def, OpDefinition):
        return
    wait_of_step(step, has_inputs=False)


def wait_of_step(step: Any, **state: bool) -> None:
    """Let the IO managers of a step's assets make it wait for older partitions.

    A function of several assets may be run for some of them alone: those alone wait.

    Args:
        step: Dagster's context of the step.
        state: What is passed on to the IO managers.
    """
    made = step.selected_output_names
    for output in step.step.step_outputs:
        if output.name not in made:
            continue
        handle = StepOutputHandle(step.step.key, output.name)
        wait = getattr(step.get_io_manager(handle), "wait_for_older", None)
        if wait is not None and output.properties.asset_key is not None:
            wait(step.get_output_context(handle), **state)


def attempt_of_step(context: OutputContext) -> tuple[str, str, int, str]:
    """Identify the attempt of a step to make an asset."""
    step, asset = context.step_context, context.asset_key.to_user_string()
    return step.run_id, step.step.key, step.previous_attempt_count, asset
