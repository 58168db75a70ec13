"""What a caller can act on: every error of this package names the value, the rule, and the way out."""

from __future__ import annotations


class WorkbenchError(Exception):
    """Base of every error this package raises on purpose; its text is one sentence for a person."""


class SettingsError(WorkbenchError, ValueError):
    """A knob has a value that no DataLoader accepts, or a name that no knob has."""


class SourceError(WorkbenchError, ValueError):
    """The loader handed over cannot be found, rebuilt or shipped to a trial."""


class ProbeError(WorkbenchError):
    """The user's own loader fails with 0 workers, before anything is tuned.

    Attributes:
        error_type: Name of the user's exception class, or of the signal that ended the probe.
        traceback_text: The user's traceback as text, ending at their own line; empty when there is none.
    """

    def __init__(self, message: str, *, error_type: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.traceback_text = traceback_text


class TrialServerError(WorkbenchError):
    """The process that runs trials could not be started or has gone away."""


class StoreError(WorkbenchError):
    """The sweep store cannot be opened, read or written; the file is left as it is."""


class ExportError(WorkbenchError, ValueError):
    """Settings cannot be written to, or read from, the file or format asked for."""


class TraceError(WorkbenchError, ValueError):
    """A file or folder is no profiler trace, or a trace could not be recorded."""


class SamplesError(WorkbenchError):
    """Sample data, or a package that reads it, is missing."""


class LayoutError(WorkbenchError, ValueError):
    """A data set, shard or name is not what a layout can read or write."""


class ConversionError(LayoutError):
    """A conversion cannot start or go on; nothing was published."""


class ManifestError(LayoutError):
    """A manifest is missing, damaged or does not describe the files beside it."""


class BatchCheckError(WorkbenchError, AssertionError):
    """A batch is not what was expected; the text names sample, field, index and value."""


class ResumeError(WorkbenchError, ValueError):
    """A saved position cannot be continued here: other data, another seed or another split, or loaded too late."""


class CacheError(WorkbenchError):
    """A folder of cached samples belongs to other data, or a sample cannot be kept in it."""
