"""The semi-Markov CRF inside JAX: `log_partition`, `loss`, `posteriors` and `viterbi` under `jit`,
`grad` and `vmap`, on the CPU and, except `posteriors`, on CUDA GPUs.

Each function is a custom call of XLA's foreign function interface: at run time it needs no Python
and copies no arrays. `log_partition` and `loss` are differentiable by every score in reverse mode;
on the CPU their gradients are differentiable once more (`jax.jacrev` of `jax.grad`, `jax.vjp` of
`jax.grad`). JAX does not support forward mode for them, as for every `custom_vjp`. Results are
pytrees.

Functions that `segfuse.compile` has compiled may be called inside `jit`, `grad` and `vmap`, too.
"""

from ._calls import Decoded, log_partition, loss, posteriors, viterbi

__all__ = ["Decoded", "log_partition", "loss", "posteriors", "viterbi"]
