"""Steps after a commit: the commit stands, so their failures are warnings, not errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deltaweave.delta.jvm import said_by

logger = logging.getLogger(__name__)


@dataclass
class AfterCommit:
    """What follows a commit.

    Attributes:
        table: What messages call the table.
        version: The version that was committed.
        warnings: What failed, a sentence each.
    """

    table: str
    version: int | None
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Run a step; an interrupt ends it, and the log says what was committed."""
        try:
            yield
        except Exception as error:
            warning = f"version {self.version} is committed; {what} failed: {said_by(error)}"
            logger.warning("%s: %s", self.table, warning, exc_info=True)
            self.warnings.append(warning)
        except BaseException:
            logger.warning("%s: interrupted after it committed %s", self.table, self.version)
            raise
