"""NumPy's functions that a worker carries out by name: those that take arrays and give arrays, and nothing else.

None of them reads or writes files, calls Python code that is handed to it, or makes arrays of objects. A name is
NumPy's own, with `linalg.` or `fft.` before it where it is from there; `add.reduce` is a method of a ufunc,
`ndarray.sort` one of arrays, `getitem` is `array[key]`. Both sides of the wire hold to this list.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Final

_NUMPY: Final = """
    all allclose amax amin angle any append argmax argmin argpartition argsort argwhere around array_equal
    array_equiv array_split astype atleast_1d atleast_2d atleast_3d average bartlett bincount blackman block
    broadcast_arrays broadcast_to choose clip column_stack compress concat concatenate convolve copy corrcoef
    correlate count_nonzero cov cross cumprod cumsum cumulative_prod cumulative_sum delete diag diagflat diagonal
    diff digitize dot dsplit dstack ediff1d einsum expand_dims extract fix flatnonzero flip fliplr flipud
    full_like geomspace gradient hamming hanning histogram histogram2d histogram_bin_edges histogramdd hsplit
    hstack i0 identity imag indices inner insert interp intersect1d isclose iscomplex isin isneginf isposinf
    isreal ix_ kaiser kron lexsort linspace logspace matrix_transpose max mean median meshgrid min moveaxis
    nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
    nanquantile nanstd nansum nanvar nonzero ones_like outer packbits pad partition percentile permute_dims poly
    polyadd polyder polydiv polyfit polyint polymul polysub polyval prod ptp quantile ravel ravel_multi_index real
    real_if_close repeat reshape resize roll rollaxis roots rot90 round searchsorted select setdiff1d setxor1d
    sinc sort sort_complex split squeeze stack std sum swapaxes take take_along_axis tensordot tile trace
    transpose trapezoid tri tril tril_indices trim_zeros triu triu_indices union1d unique unique_all unique_counts
    unique_inverse unique_values unpackbits unravel_index unstack unwrap vander var vdot vsplit vstack where
    zeros_like
"""
_LINALG: Final = """
    cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm matrix_power
    matrix_rank matrix_transpose multi_dot norm outer pinv qr slogdet solve svd svdvals tensordot tensorinv
    tensorsolve trace vecdot vector_norm
"""
_FFT: Final = """
    fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2
    rfftn
"""
# What they write, besides what they return: their first argument.
_WRITING: Final = "copyto fill_diagonal place put put_along_axis putmask ndarray.sort ndarray.partition setitem"
# What generators draw, too, besides those that have operations of their own.
DRAWS: Final = """
    beta binomial chisquare dirichlet exponential f gamma geometric gumbel hypergeometric laplace logistic lognormal
    logseries multinomial multivariate_hypergeometric multivariate_normal negative_binomial noncentral_chisquare
    noncentral_f normal pareto permuted poisson power rayleigh standard_cauchy standard_gamma standard_t triangular
    uniform vonmises wald weibull zipf
"""
UFUNC_METHODS: Final = ("reduce", "accumulate", "reduceat", "outer", "at")

FUNCTIONS: Final = frozenset(
    (*_NUMPY.split(), *[f"linalg.{name}" for name in _LINALG.split()], *[f"fft.{name}" for name in _FFT.split()])
)
WRITING: Final = frozenset(_WRITING.split())
_OURS: Final[dict[str, Callable[..., Any]]] = {"getitem": operator.getitem, "setitem": operator.setitem}


def is_known(name: str, ufuncs: frozenset[str]) -> bool:
    """Whether a worker carries out the function of this name; `ufuncs` are the names of NumPy's."""
    first, _, method = name.partition(".")
    return (
        name in FUNCTIONS
        or name in WRITING
        or name in _OURS
        or (first in ufuncs and (not method or method in UFUNC_METHODS))
    )


@functools.lru_cache(4096)
def function(name: str, xp: Any) -> Callable[..., Any]:
    """The function of this name in `xp`, which is numpy or a module with the same names.

    Raises:
        LookupError: there is no such function, or it is none that may be called by name.
    """
    if not is_known(name, _ufuncs(xp)):
        raise LookupError(f"{name} is no function that a worker carries out by name")
    if name in _OURS:
        return _OURS[name]
    found = xp
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise LookupError(f"{getattr(xp, '__name__', xp)} on this device has no function {name}")
    return found  # type: ignore[no-any-return]


def carry_out(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], xp: Any) -> Any:
    """What the function of this name gives for these arguments; `out=` has it, too.

    Some of NumPy's (`fft.hfft`, `fft.ifft2`) take an `out` which they do not write, at least not in the end.
    """
    result = function(name, xp)(*args, **kwargs)
    out = kwargs.get("out")
    if out is not None and result is not out and not isinstance(out, tuple):
        xp.copyto(out, result, casting="same_kind")
    return result


@functools.cache
def _ufuncs(xp: Any) -> frozenset[str]:
    return frozenset(name for name, each in vars(xp).items() if isinstance(each, xp.ufunc))
