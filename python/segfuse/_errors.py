"""The errors that segfuse raises. Each carries one sentence: what, what was found, what to do."""


class Error(Exception):
    """Base of every error of segfuse."""


class UsageError(Error, ValueError):
    """An argument that cannot work: a type, a shape, a dtype, a device, a length."""


class DataError(Error, ValueError):
    """A number that cannot be: a NaN score, a label out of range, a gold segment too long."""


class DeviceError(Error, RuntimeError):
    """A device, its driver or a disk failed; no room on them included."""


class InternalError(Error, RuntimeError):
    """A fault of segfuse itself."""


for _class in (Error, UsageError, DataError, DeviceError, InternalError):
    _class.__module__ = "segfuse"  # where users find them
