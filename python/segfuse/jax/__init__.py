"""The semi-Markov CRF inside JAX: `log_partition`, `loss`, `posteriors` and `viterbi` under `jit`,
`grad` and `vmap`, on the CPU and, but for `posteriors`, on CUDA GPUs.

Each is a custom call of XLA's foreign function interface: at run time there is no Python, and no
array is copied. `log_partition` and `loss` are differentiable by every score in reverse mode, and
on the CPU their gradients once more (`jax.jacrev` of `jax.grad`, `jax.vjp` of `jax.grad`). JAX
refuses forward mode through them, as it does through every `custom_vjp`. Results are pytrees.

Functions that `segfuse.compile` has compiled may be called inside `jit`, `grad` and `vmap`, too.
"""

from ._calls import Decoded, log_partition, loss, posteriors, viterbi

__all__ = ["Decoded", "log_partition", "loss", "posteriors", "viterbi"]
