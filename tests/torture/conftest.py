"""Prints what the torture tests counted, after pytest's own summary."""

from __future__ import annotations

from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print a line for each property that a test recorded by `record_property`."""
    lines = [
        f"{name}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call" and "tests/torture/" in report.nodeid
        for name, value in report.user_properties
    ]
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write_line("\n".join(lines))
