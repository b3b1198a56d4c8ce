from . import clauses as clauses
from . import errors as errors
from ._session import local_session as local_session
from .changes.apply import apply_changes as apply_changes
from .changes.debezium import FROM_DEBEZIUM as FROM_DEBEZIUM
from .changes.debezium import debezium_changes as debezium_changes
from .changes.merge_on_read import MergeOnReadTable as MergeOnReadTable
from .delta.commit import Lease as Lease
from .delta.commit import WriteResult as WriteResult
from .engine.explain import MergePlan as MergePlan
from .engine.report import MergeMetrics as MergeMetrics
from .engine.report import MergeResult as MergeResult
from .engine.report import TouchedFiles as TouchedFiles
from .session_merges import disable as disable
from .session_merges import enable as enable
from .statements import MergeBuilder as MergeBuilder
from .statements import explain as explain
from .statements import merge as merge
from .table import ChangedRows as ChangedRows
from .table import Table as Table
from .table import TouchedRows as TouchedRows

__version__: str
