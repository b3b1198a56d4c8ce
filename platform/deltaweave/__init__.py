"""deltaweave keeps Delta tables current: a MERGE engine of its own on PySpark and Delta's log.

The whole public API is here, and it is lazy: importing the package starts no JVM and imports no
pyspark.
"""

from importlib.resources import as_file, files

import lazy_loader

# The names and their homes are in the stub beside this file, once for readers and type checkers.
# A file of its own for as long as it is read: the package may lie in a zip (`--py-files`).
with as_file(files(__name__) / "__init__.pyi") as _stub:
    __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, str(_stub))

__version__ = "0.1.0"
