"""How long a run of the tests still takes, by the tests that have ended."""

from __future__ import annotations

import time

import pytest

_FEW = 200  # tests, for which nobody waits long
_STEP = 0.05  # of all tests, between two lines


class RemainingTime:
    """Prints the minutes left when they change, at most after each twentieth of the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._ended = 0
        self._next = _STEP
        self._last = ""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._ended += 1
        done = self._ended / max(self._session.testscollected, 1)
        if self._session.testscollected < _FEW or not self._next <= done < 1:
            return
        self._next = (done // _STEP + 1) * _STEP
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            line = in_words(done, (time.monotonic() - self._began) * (1 - done) / done)
            if line.split(", ")[1] != self._last.split(", ")[-1]:
                reporter.ensure_newline()
                reporter.write_line(line)
            self._last = line


def in_words(done: float, seconds: float) -> str:
    """Return the line.

    >>> in_words(0.25, 400), in_words(0.95, 20)
    ('25 % of the tests, about 7 minutes left', '95 % of the tests, about 1 minute left')
    """
    minutes = max(1, round(seconds / 60))
    left = "1 minute" if minutes == 1 else f"{minutes} minutes"
    return f"{done:.0%} of the tests, about {left} left".replace("%", " %", 1)
