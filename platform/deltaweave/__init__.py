"""deltaweave keeps Delta tables current: a MERGE engine of its own on PySpark and Delta's log.

The whole public API is here, and it is lazy: importing the package starts no JVM and imports no
pyspark.
"""

import lazy_loader

# The names and their homes are in the stub beside this file, once for readers and type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"
