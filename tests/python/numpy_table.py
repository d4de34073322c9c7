"""Every function of segfuse.ops that NumPy has, against NumPy, from one table.

A case is an expression over `x`, which is NumPy or segfuse.ops, and arrays by letter. It is
evaluated by NumPy in float64, compiled and run in float32 and float64 (with `--dtypes f2` in
float16), and differentiated along a random direction against central differences.

    python tests/python/numpy_table.py [--only NAME] [--device cuda] [--no-gradients]
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
import warnings

import numpy as np

import segfuse
import segfuse.ops as sf

NAN, INF = np.nan, np.inf


def arrays(dtype):
    rng = np.random.default_rng(7)
    a = {
        "A": rng.normal(size=(3, 4, 5)),
        "M": rng.normal(size=(4, 5)),
        "R": rng.normal(size=(4, 5)),
        "S": rng.normal(size=(4, 4)),
        "T": rng.normal(size=(5, 3)),
        "V": rng.normal(size=5),
        "W": rng.normal(size=5),
        "C": rng.normal(size=3),
        "H": rng.normal(size=(2, 3)),
        "D": rng.normal(size=(2, 6, 4, 8)),
        "P": rng.uniform(0.3, 2.5, size=(4, 5)),
        "Q": rng.uniform(1.1, 4.0, size=(4, 5)),
        "U": rng.uniform(-0.9, 0.9, size=(4, 5)),
        "N": np.where(rng.random((4, 5)) < 0.3, NAN, rng.normal(size=(4, 5))),
        "Z": np.array([0.0, -0.0, 1.5, -2.5, INF, -INF, NAN, 3.0, 1e-30, -7.0]),
        "Y": np.array([-0.0, 0.0, -2.0, 3.0, -INF, 5.0, 1.0, NAN, -1e-30, 2.0]),
        "X": np.sort(rng.normal(size=7)),
        "E": np.zeros((0, 5)),
        "O": np.array(0.75),
    }
    floats = {k: v.astype(dtype) for k, v in a.items()}
    whole = {
        "I": rng.integers(-9, 10, (4, 5)),
        "J": rng.integers(1, 6, (4, 5)),
        "K": rng.integers(0, 4, (4, 5)),
        "L": np.array([2, 0, 3, 3, 1]),
        "G": np.array([-3, -1, 0, 1, 2, 5, 7, 2**31 - 1, -(2**31)]).astype("i4"),
        "B": rng.random((4, 5)) < 0.5,
        "F": rng.random((4, 5)) < 0.5,
    }
    return {**floats, **whole}


# Marks in front: "!" has no gradient to compare (kinks, whole numbers, tests); "~" is not exact to
# the last digits in float32 (differences of large numbers).
TABLE = """
! abs(I); absolute(M); fabs(M); ! fabs(I); ! sign(Z); ! sign(I); positive(M); negative(M); negative(I)
add(M, R); add(I, J); subtract(M, V); multiply(M, R); multiply(I, 3); divide(M, P); divide(I, J)
true_divide(M, P); reciprocal(P); square(M); sqrt(P); cbrt(M); ! cbrt(Z); exp(M); exp2(M); expm1(U)
log(P); log2(P); log10(P); log1p(P); sin(M); cos(M); tan(U); arcsin(U); arccos(U); arctan(M)
arctan2(M, R); ! arctan2(Z, Y); ! arctan(Z); asin(U); acos(U); atan(M); atan2(M, P)
! arcsin(x.asarray(U) * 2); sinh(M); ! sinh(Z); cosh(M); ! cosh(Z); tanh(M); arcsinh(M)
! arcsinh(Z * 1e10); arccosh(Q); ! arccosh(Z); arctanh(U); ! arctanh(Z); asinh(M); acosh(Q); atanh(U)
hypot(M, R); ! hypot(Z, Y); ! hypot(1e30 * M, 1e30 * R); logaddexp(M, R); ! logaddexp(Z, Y)
logaddexp(M, M + 0.0 * R); logaddexp2(M, R); sinc(M); ! sinc(Z * 0.0); deg2rad(M); rad2deg(M)
radians(M); degrees(M); power(P, R); power(M, 3); power(M, -2.0); power(P, 0.5); ! power(I, J)
! power(I, 3); ! power(G, x.asarray(L)[:1]); float_power(P, 2.5); ! pow(P, R)
! maximum(Z, Y); ! minimum(Z, Y); maximum(M, R); minimum(M, R); ! fmax(Z, Y); ! fmin(Z, Y)
fmax(M, R); ! heaviside(Z, 0.5); ! copysign(Z, Y); copysign(M, 2.0); ! signbit(Z[:6])
! floor(M); ! ceil(M); ! trunc(M); ! trunc(Z); ! fix(M); ! rint(M * 3); ! round(M * 100, 1)
! round(M * 7); ! round(M * 1000, -2); ! around(M * 5, 2); ! modf(Z)[0]; ! modf(M)[1]
! floor_divide(M, P); ! floor_divide(I, J); ! floor_divide(J, I); ! remainder(M, P); remainder(M, 1.7)
! remainder(I, J); ! remainder(I, -3); ! mod(I, J); ! fmod(I, J); ! fmod(M, P); ! divmod(I, J)[0]
! divmod(I, J)[1]; ! floor_divide(G, 3); ! floor_divide(G, -3); ! remainder(G, 7); ! fmod(G, -7)
! bitwise_and(I, J); ! bitwise_or(I, J); ! bitwise_xor(I, J); ! bitwise_not(I); ! invert(I)
! invert(B); ! bitwise_and(B, F); ! bitwise_or(B, F); ! bitwise_xor(B, F); ! left_shift(I, J)
! right_shift(I, J); ! left_shift(G, 3); ! right_shift(G, 2); ! bitwise_count(I); ! bitwise_invert(I)
! bitwise_left_shift(I, 2); ! bitwise_right_shift(I, 2)
! logical_and(M > 0, R); ! logical_or(I, B); ! logical_xor(B, F); ! logical_not(I)
! equal(I, J); ! not_equal(I, J); ! less(M, R); ! less_equal(I, J); ! greater(M, R)
! greater_equal(I, J); ! isnan(Z); ! isinf(Z); ! isfinite(Z); ! isposinf(Z); ! isneginf(Z)
! isclose(M, M * (1 + 3e-6)); ! isclose(Z, Y); ! isclose(Z, Z, equal_nan=True); ! allclose(M, M)
! allclose(M, R); ! array_equal(M, M); ! array_equal(M, V); ! array_equiv(M, V); ! array_equal(Z, Z, equal_nan=True)
! isreal(M); ! iscomplex(M); real(M); ! imag(M); conj(M); conjugate(M); ! angle(Z[1:6]); ! angle(M, True)
! nan_to_num(Z, nan=2.0, posinf=9.0, neginf=-9.0); ! nan_to_num(N); clip(M, -0.5, 1.0); clip(M, None, 0.4)
! clip(I, 0, 5); where(B, M, R); where(B, M, 0.0); ! where(I, 1, J); select([M > 1, M > 0], [M, R], 0.5)
! choose(K, [J, I, K, J]); piecewise(M, [M < 0, M > 1], [lambda v: v * v, lambda v: v - 1, 3.0])
! ldexp(M, 3); ! ldexp(M, K)
sum(M); sum(A, axis=1); sum(A, axis=(0, -1), keepdims=True); ! sum(I, axis=0); ! sum(B); sum(M, where=B)
! sum(E, axis=0); ! sum(E, axis=1); prod(M, axis=0); prod(P, axis=1, where=B); ! prod(E, axis=0); mean(A, axis=(0, 1))
mean(M, where=B); ! mean(I); var(M, axis=1); var(A, ddof=1); var(M, where=B); std(M, axis=0); max(M, axis=1)
min(A, axis=(1, 2)); amax(M); amin(M); ! max(N, axis=1); max(M, initial=0.5, axis=0); ! max(I, axis=0, where=B, initial=-20)
ptp(M, axis=1); ! any(B, axis=1); ! all(B, axis=0); ! any(M > 1); ! all(M > 1, axis=1, where=B); ! argmax(M, axis=1)
! argmin(M); ! argmax(I); ! argmax(A, axis=1, keepdims=True); ! count_nonzero(I, axis=1); ! count_nonzero(B)
average(M, axis=1); average(M, axis=1, weights=V); average(M, weights=P); ! nansum(N, axis=1); ! nanprod(N, axis=0)
! nanmax(N, axis=1); ! nanmin(N, axis=1); ! nanmean(N, axis=1); ! nanvar(N); ! nanstd(N, ddof=1); ! nanargmax(N, axis=1)
! nanargmin(N, axis=1); ! nanmedian(N, axis=1); ! nanquantile(N, 0.3, axis=1); ! nanpercentile(N, 30, axis=1)
median(M, axis=1); ! median(M); median(A, axis=(0, 2)); ! median(N, axis=1); quantile(M, 0.3, axis=0)
quantile(M, [0.1, 0.5, 1.0], axis=1); quantile(M, 0.25, keepdims=True); percentile(M, 62.5, axis=1)
! quantile(M, 0.3, axis=1, method='lower'); ! quantile(M, 0.3, axis=1, method='higher')
! quantile(M, 0.3, axis=1, method='nearest'); quantile(M, 0.3, axis=1, method='midpoint')
cov(M); cov(M, R); cov(M, rowvar=False, ddof=0); cov(V); corrcoef(M); corrcoef(M, rowvar=False)
cumsum(M, axis=1); cumsum(M); cumsum(A, axis=0); ! cumsum(I, axis=0); ! cumsum(B, axis=1); ! cumsum(E, axis=0)
cumprod(M, axis=1); cumprod(M); ! cumprod(J, axis=1); cumulative_sum(M, axis=1, include_initial=True)
cumulative_prod(M, axis=0); cumulative_prod(V, include_initial=True); ! nancumsum(N, axis=1); ! nancumprod(N, axis=1)
maximum.accumulate(M, axis=1); minimum.accumulate(A, axis=1); ! maximum.accumulate(N, axis=1); add.reduce(M, axis=1)
! maximum.reduce(I, axis=0); logaddexp.reduce(M, axis=1); ~ logaddexp.accumulate(M, axis=1); multiply.outer(V, C)
diff(M, axis=0); diff(M, n=2); diff(V, prepend=0.0, append=W); ! diff(I); ediff1d(M); ediff1d(V, to_begin=C, to_end=W)
trapezoid(M, axis=1); trapezoid(M, x=X[:5], axis=1); trapezoid(V, dx=0.3); gradient(V); gradient(M, 0.5, axis=0)
gradient(M)[1]; unwrap(M * 4, axis=1); ! unwrap(M * 4, axis=0, period=3.0); interp(M, X, x.flip(X)); ! interp(Z[:4], X, X, left=-5.0, right=5.0)
sort(M); sort(M, axis=0); sort(M, axis=None); ! sort(Z); ! sort(I, axis=0); ! sort(B); ! sort(E, axis=0); ! argsort(M, axis=1)
! argsort(M, axis=None); ! argsort(I, axis=0, kind='stable'); ! argsort(Z); sort(A, axis=1); ! lexsort([L, L[::-1]])
! partition(V, 4)[4]; ! searchsorted(X, M); ! searchsorted(X, X, side='right'); ! digitize(M, [-1.0, 0.0, 1.0])
! digitize(M, [1.0, 0.0, -1.0]); ! digitize(I, [-2, 0, 3], right=True); ! bincount(L, minlength=4); ! bincount(L, weights=V, minlength=4)
! histogram(M, bins=[-2.0, -1.0, 0.5, 2.0])[0]; ! histogram(M, bins=4, range=(-1.0, 1.0))[0]; ! histogram(M)[1]
! histogram(M, bins=3, weights=P)[0]; ! histogram_bin_edges(M, 5); ! isin(I, L); ! isin(I, [1, 2], invert=True)
reshape(M, (2, -1)); ravel(A); transpose(A); transpose(A, (1, 2, 0)); permute_dims(A, (2, 0, 1)); swapaxes(A, 0, 2)
matrix_transpose(A); moveaxis(A, 0, -1); moveaxis(A, (0, 1), (-1, 0)); rollaxis(A, 2); rollaxis(A, 0, 3); expand_dims(M, 1)
expand_dims(M, (0, -1)); squeeze(x.expand_dims(M, 1)); squeeze(x.expand_dims(M, 0), axis=0); broadcast_to(V, (3, 5))
broadcast_arrays(M, V)[1]; concatenate([M, R]); concatenate([M, R], axis=None); concat([M, R], axis=1); stack([M, R], axis=-1)
hstack([M, R]); hstack([V, W]); vstack([V, W]); dstack([M, R]); column_stack([V, W]); column_stack([M, R]); block([[M, R], [R, M]])
append(M, R, axis=0); append(M, V); array_split(V, 3)[1]; split(A, 2, axis=1)[1]; hsplit(A, [1, 3])[1]; vsplit(M, 2)[0]
dsplit(A, [2])[0]; unstack(M)[2]; unstack(M, axis=1)[0]; tile(M, 2); tile(M, (2, 1, 3)); tile(V, (2, 2)); repeat(M, 3, axis=1)
repeat(M, 2); repeat(V, [1, 0, 2, 1, 3]); roll(M, 2); roll(M, 1, axis=0); roll(M, -7, axis=1); roll(M, (1, 2), axis=(0, 1))
! roll(I, 3, axis=1); rot90(M); rot90(M, 2); rot90(A, 3, axes=(1, 2)); flip(M); flip(A, (0, 2)); fliplr(M); flipud(M)
resize(V, (3, 4)); pad(M, 1); pad(M, ((1, 0), (0, 2)), constant_values=3.0); tril(M); tril(A, 1); tril(S, k=-1); triu(M)
triu(A, 2); ! triu(I, -1); triu(V); diagonal(A); diagonal(A, 1, 1, 2); diagonal(M, -2); diag(M); diag(V); diag(V, 2); diag(C, -1); diag(S, 1)
! diag(L); diagflat(M[:2, :2]); trace(A); trace(S, offset=1); ! trace(I); atleast_1d(O); atleast_2d(V); atleast_3d(M); atleast_2d(O)
meshgrid(V, C)[0]; meshgrid(V, C)[1]; meshgrid(V, C, indexing='ij')[0]; meshgrid(V, C, sparse=True)[1]; vander(C); vander(C, 4, increasing=True)
delete(M, 1, axis=0); delete(M, [0, 3], axis=1); delete(V, slice(1, 3)); insert(V, 2, 9.0); insert(M, 1, V, axis=0); insert(V, [1, 3], [5.0, 6.0])
compress([True, False, True, True], M, axis=0); extract([True, False, True, False, True], V); take(M, L, axis=0); take(M, 3)
take_along_axis(M, K[:, :2], axis=1); ! ravel_multi_index((K, K), (4, 6)); ! unravel_index(K, (2, 2))[0]; ! unravel_index(K, (2, 2))[1]
copy(M); full_like(M, 2.0) * M; zeros_like(M) + M; ones_like(M) * M; empty_like(M) * 0 + M; linspace(V, W, 4); linspace(0.0, V, 5, endpoint=False)
! linspace(O, 2.0, 7); logspace(O, O + 1, 3); geomspace(x.abs(O) + 1, x.abs(O) + 3, 4)
matmul(M, T); matmul(A, T); dot(M, T); dot(A, T); dot(V, W); dot(M, 2.0); inner(M, R); inner(V, W); outer(V, C); vdot(M, R); vecdot(M, R)
tensordot(A, M, axes=([1, 2], [0, 1])); tensordot(A, T, axes=1); tensordot(V, C, axes=0); ! tensordot(I, J.T, axes=1); kron(H, T); kron(V, C)
cross(x.stack([C, C * 2 + 1]), C); cross(T, T[::-1] * 0.5); einsum('ij,jk->ik', M, T); einsum('ij,jk', M, T); einsum('bij->bji', A)
einsum('ii', S); einsum('ii->i', S); einsum('bij,ij->b', A, M); einsum('i,j->ij', V, C); einsum('...ij,jk->...ik', A, T); einsum('ij,kj,j->ik', M, R, V)
einsum('ij->', M); einsum('ij,ij->ij', M, R); einsum('...i->...', A); einsum('bij,bkj->bik', A, A); einsum('ij,jk,kl->il', M, T, x.transpose(T))
! einsum('ij,ij->i', I, J); einsum('ji', M); einsum('...,...', M, V); einsum('iij->j', S[:, :, None] * V); matvec(M, V); vecmat(V, T)
linalg.norm(M); linalg.norm(V); linalg.norm(M, axis=1); linalg.norm(V, 3); linalg.norm(M, 'fro'); linalg.norm(V, INF); linalg.norm(V, -INF)
linalg.norm(M, 1); linalg.norm(M, INF); ! linalg.norm(V, 0); linalg.norm(V, 1, keepdims=True); linalg.norm(A, -1, axis=(1, 2))
polyval(C, M); polyadd(C, V); polysub(C, V); polymul(C, V); polyder(V); polyder(V, 2); polyint(C); convolve(V, C); convolve(C, V, 'same')
convolve(V, C, 'valid'); correlate(V, C); correlate(V, C, 'full'); correlate(C, V, 'same'); correlate(C, V); ! ndim(M) + I; ! size(M) + I
! square(I); sum(M * R, axis=0); fill_diagonal(S, 2.0) * 1.0
! argmin(G); ! argmin(G, axis=0, keepdims=True); ! argmax(B); ! argmax(B, axis=1); ! argmin(B, axis=1)
! power(I, 2.0); ! power(J, -1.0); ! power(I, 0.5); ! power(J, 3.5); ! power(B, 2) * I
! arccosh(Z * 1e20); ! median(x.asarray(Z)[[2, 3, 4, 4]]); ! median(x.asarray(Z)[[4, 5]]); ! nanmedian(x.asarray(Z)[[2, 3, 5, 5, 6]])
"""

NO_NUMPY = {"vecmat", "matvec", "linalg.norm"}
SPECIAL = {
    "fill_diagonal": lambda s, v: np.where(np.eye(4, dtype=bool), v, s),
    "ldexp": lambda m, k: m * 2.0**k,
    "linspace": np.linspace,
}


class Reference:
    """NumPy, with what changes in place as a new array."""

    def __getattr__(self, name):
        return SPECIAL.get(name) or getattr(np, name)


class Ufunc:
    def __init__(self, name):
        self.name = name

    def __getattr__(self, method):
        return getattr(getattr(np, self.name), method)


class Ours:
    """segfuse.ops, and NumPy's ufunc methods and linalg on its values."""

    linalg = np.linalg

    def __getattr__(self, name):
        return getattr(sf, name)


def cases():
    for text in re.split(r";|\n", TABLE):
        text = text.strip()
        if not text:
            continue
        marks = re.match(r"[!~ ]*", text).group()
        text = text[len(marks) :]
        name = re.match(r"[\w.]+", text).group()
        yield name, text, "!" not in marks, "~" in marks


def evaluated(text, name, library, values):
    base = name.split(".")[0]
    over = np if "." in name and name != "linalg.norm" else library
    code = re.sub(rf"^{re.escape(name)}", "_over." + name, text)
    names = {**values, "x": library, "_over": over, "INF": INF, "NAN": NAN}
    assert base
    return eval(code, names)


def letters(text):
    return list(dict.fromkeys(re.findall(r"\b[A-Z]\b", text)))


def function_of(name, text, used, library):
    return lambda *values: evaluated(text, name, library, dict(zip(used, values, strict=True)))


TOLERANCE = {"f2": 8e-3, "f4": 2e-5, "f8": 1e-11}


def on(device, values):
    if device == "cpu":
        return values
    import torch

    return [torch.tensor(np.ascontiguousarray(v), device=device) for v in values]


def back(result):
    return np.asarray(result.cpu() if hasattr(result, "cpu") else result)


def wrong_value(name, text, rough, device, dtype):
    if dtype == "f2" and re.search("e[123]0", text):
        return None  # beyond its range
    data = arrays(dtype)
    used = letters(text)
    values = [data[c] for c in used]
    wide = [v.astype("f8") if v.dtype.kind == "f" else v for v in values]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = np.asarray(function_of(name, text, used, Reference())(*wide))
    got = back(segfuse.compile(function_of(name, text, used, Ours()))(*on(device, values)))
    if got.shape != want.shape:
        return f"found the shape {got.shape}, expected {want.shape}"
    kinds = {"f": "f", "i": "i", "u": "i", "b": "b"}
    if kinds[got.dtype.kind] != kinds[want.dtype.kind]:
        return f"found {got.dtype}, expected {want.dtype}"
    if want.dtype.kind != "f":
        return None if (got == want).all() else f"found\n{got}\nexpected\n{want}"
    if not any(v.dtype.kind == "f" for v in values):
        dtype = "f4"  # what integers become
    bound = TOLERANCE[dtype] * (10 if rough else 1)
    kept = np.isfinite(want) if dtype == "f4" else np.ones(want.shape, bool)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        near = np.abs(got - want) <= bound * (1 + np.abs(want))
        near |= ~kept & (np.abs(got) == np.abs(want)) & (want == got)
        near |= (np.abs(want) > 3e38) & (dtype == "f4") & np.isinf(got)
    return None if (same | near).all() else f"found\n{got}\nexpected\n{want}"


def wrong_gradient(name, text, device):
    data = arrays("f8")
    used = letters(text)
    values = [data[c] for c in used]
    floats = [i for i, v in enumerate(values) if v.dtype.kind == "f"]
    ours, reference = (function_of(name, text, used, lib) for lib in (Ours(), Reference()))
    rng = np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = rng.uniform(0.5, 1.5, size=np.shape(reference(*values)))
    gradients = segfuse.grad(lambda *v: (ours(*v) * weights).sum(), argnums=tuple(floats))(
        *on(device, values)
    )
    for i, gradient in zip(floats, gradients, strict=True):
        gradient = back(gradient)
        direction = rng.uniform(-1, 1, size=values[i].shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = list(values)
            moved[i] = moved[i] + step * direction
            ends.append(float((reference(*moved) * weights).sum()))
        slope = (ends[0] - ends[1]) / 2e-6
        got = float((gradient * direction).sum())
        scale = float(np.abs(gradient * direction).sum())
        if not abs(got - slope) <= 1e-5 * (1 + scale):
            return f"the slope by {used[i]} is {got}, expected {slope}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--dtypes", default="f4,f8")
    a = parser.parse_args()
    segfuse.set_threads(1)
    passed, failed = 0, 0
    for name, text, smooth, rough in cases():
        if a.only and name != a.only:
            continue
        checks = [
            (d, lambda d=d: wrong_value(name, text, rough, a.device, d))
            for d in a.dtypes.split(",")
        ]
        if smooth and not a.no_gradients:
            checks.append(("gradient", lambda: wrong_gradient(name, text, a.device)))
        for what, check in checks:
            try:
                found = check()
            except Exception:
                found = traceback.format_exc().strip().split("\n")[-1]
            passed += found is None
            failed += found is not None
            if found is not None:
                print(f"{text} ({what}): {found}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
