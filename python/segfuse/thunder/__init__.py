"""A fusion executor of Lightning Thunder, `executor`:

thunder.jit(model, executors=["sdpa", segfuse.thunder.executor])
"""

try:
    from thunder.extend import register_executor
except Exception as error:  # whatever another version of PyTorch causes
    raise ImportError(
        "segfuse.thunder needs Lightning Thunder, but `import thunder` failed with "
        f"{type(error).__name__}: {error}; install lightning-thunder and a PyTorch that it accepts "
        "(0.2.6 accepts PyTorch 2.11, not 2.13)"
    ) from error

from ._executor import SegfuseExecutor

__all__ = ["SegfuseExecutor", "executor"]

executor = register_executor(SegfuseExecutor())
