"""The formulas that fusion_peers.py and fusion_gpu_peers.py share, in f32, for PyTorch and for JAX."""

from types import SimpleNamespace


def in_f32(function, to_f32, rounded):
    """The function on arrays of any float type: computed in f32, results rounded to the first array's type."""

    def call(*arrays):
        results = function(*(to_f32(a) for a in arrays))
        results = results if isinstance(results, tuple) else (results,)
        return tuple(rounded(r, arrays[0].dtype) for r in results)

    return call


def torch_formulas(torch):
    f = torch.nn.functional

    def rms(x, scale):
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6) * scale

    def layer_norm(x, scale=None, shift=None):
        return f.layer_norm(x, (x.shape[1],), scale, shift)

    def gradients(x, g, scale):
        """Of x, scale and shift of a layer norm."""
        mean, var = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
        r = torch.rsqrt(var + 1e-5)
        n = (x - mean) * r
        gs = g * scale
        dx = r * (gs - gs.mean(1, keepdim=True) - n * (gs * n).mean(1, keepdim=True))
        return dx, (g * n).sum(0), g.sum(0)

    def wide(function):
        return in_f32(function, lambda a: a.float(), lambda r, dtype: r.to(dtype))

    return SimpleNamespace(rms=rms, layer_norm=layer_norm, gradients=gradients, wide=wide)


def jax_formulas(jax, jnp):
    def rms(x, scale):
        return x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6) * scale

    def norm(x, axes=1):
        """Over these axes, without scale and shift."""
        away = x - x.mean(axes, keepdims=True)
        return away * jax.lax.rsqrt((away**2).mean(axes, keepdims=True) + 1e-5)

    def layer_norm(x, scale, shift):
        return norm(x) * scale + shift

    def gradients(x, g, scale):
        mean = x.mean(1, keepdims=True)
        r = jax.lax.rsqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-5)
        n = (x - mean) * r
        gs = g * scale
        dx = r * (gs - gs.mean(1, keepdims=True) - n * (gs * n).mean(1, keepdims=True))
        return dx, (g * n).sum(0), g.sum(0)

    def wide(function):
        return in_f32(function, lambda a: a.astype(jnp.float32), lambda r, dtype: r.astype(dtype))

    return SimpleNamespace(
        rms=rms, norm=norm, layer_norm=layer_norm, gradients=gradients, wide=wide
    )
