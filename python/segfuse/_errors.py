"""The errors that segfuse raises. Each has one sentence: what is wrong, and what to do."""


class Error(Exception):
    """Base of every error of segfuse."""


class UsageError(Error, ValueError):
    """An argument is wrong: its type, shape, dtype, device or length."""


class DataError(Error, ValueError):
    """The content of data is wrong: a NaN score, a label out of range, a gold segment too long."""


class DeviceError(Error, RuntimeError):
    """A device, its driver or a disk failed, or is full."""


class InternalError(Error, RuntimeError):
    """A bug of segfuse."""


for _class in (Error, UsageError, DataError, DeviceError, InternalError):
    _class.__module__ = "segfuse"  # where users find them
