from tests.dagster_deltaweave.conftest import instance

__all__ = ["instance"]
