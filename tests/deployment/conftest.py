from tests.dagster_deltaweave.conftest import empty_home, instance

__all__ = ["empty_home", "instance"]
