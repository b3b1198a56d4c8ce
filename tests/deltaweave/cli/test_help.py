"""What `--help` shows of each command: an example that works, and flags without a value."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from deltaweave.cli import app

COMMANDS = [str(command.name) for command in app.registered_commands]


def shown(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_command_is_in_the_help() -> None:
    assert all(name in shown("--help") for name in COMMANDS)
    assert "deltaweave doctor" in shown("--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_an_example_that_its_arguments_take(name: str) -> None:
    [line] = re.findall(r"Example: (deltaweave .*)", shown(name, "--help"))
    program, command, *arguments = shlex.split(line)
    assert (program, command) == ("deltaweave", name)
    group = typer.main.get_command(app)
    context = group.make_context("deltaweave", [name, *arguments], resilient_parsing=True)
    known = group.get_command(context, name)  # type: ignore[attr-defined]
    known.make_context(name, arguments, parent=context)


def test_the_command_of_a_group_shows_an_example() -> None:
    assert "Example: deltaweave warm stop" in shown("warm", "stop", "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_value_has_a_name_and_not_a_type_of_python(name: str) -> None:
    assert "list[" not in shown(name, "--help")


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS), ["warm", "stop"]])
def test_a_flag_does_not_look_as_if_it_took_a_value(arguments: list[str]) -> None:
    lines = shown(*arguments, "--help").splitlines()
    of_typer = ("--help", "--install-completion", "--show-completion")
    assert [
        line for line in lines if "<bool>" in line and not any(flag in line for flag in of_typer)
    ] == []
