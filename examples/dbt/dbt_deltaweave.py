"""Lets the profile's `spark.deltaweave.enabled` decide whether merges run on the engine.

dbt imports each module that it finds with a name that begins with `dbt_`, as it looks for plugins,
once it has read the profile. With dbt-spark's method `session`, that process is Spark's driver.
"""

from __future__ import annotations

import sys

# Other adapters' projects need no PySpark, and dbt starts faster without.
if "dbt.adapters.spark" in sys.modules:
    from deltaweave.session_merges import install

    install()
