"""Other libraries' code on Interlock's arrays, unchanged, with real data: run by `test_third_party.py`.

Each check computes the same with NumPy's arrays and compares; the results of the library must be arrays on the device.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import array_api_compat
import array_api_extra as xpx
import einops.array_api
import numpy as np
import opt_einsum
import scipy.fft
import scipy.special
import scipy.stats
from sklearn import config_context
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import interlock as il

HOST, KINDS = load_iris(return_X_y=True)
FLOWERS = (KINDS > 0).astype(np.int64)


def estimator(make: Callable[[], Any], method: str, target: Any = None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Fitting and asking a scikit-learn estimator."""

    def check(x: Any, send: Callable[[Any], Any]) -> Any:
        fitted = make().fit(x) if target is None else make().fit(x, send(target))
        return getattr(fitted, method)(x)

    return check


CHECKS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "PCA, full": estimator(lambda: PCA(2, svd_solver="full"), "transform"),
    "PCA, covariance": estimator(lambda: PCA(2, svd_solver="covariance_eigh"), "transform"),
    "Ridge": estimator(lambda: Ridge(solver="svd"), "predict", HOST[:, 0] * 2 + 1),
    "LinearDiscriminantAnalysis": estimator(LinearDiscriminantAnalysis, "predict", FLOWERS),
    "LogisticRegression": estimator(lambda: LogisticRegression(tol=1e-8), "predict_proba", FLOWERS),
    "GaussianMixture": estimator(
        lambda: GaussianMixture(2, random_state=0, init_params="random_from_data"), "predict_proba"
    ),
    "StandardScaler": estimator(StandardScaler, "transform"),
    "MinMaxScaler": estimator(MinMaxScaler, "transform"),
    "train_test_split": lambda x, send: train_test_split(x, random_state=0)[1],
    "accuracy_score": lambda x, send: accuracy_score(send(FLOWERS), send(KINDS)),
    "r2_score": lambda x, send: r2_score(x[:, 0], x[:, 1]),
    "scipy.special.logsumexp": lambda x, send: scipy.special.logsumexp(x, axis=1),
    "scipy.special.softmax": lambda x, send: scipy.special.softmax(x, axis=1),
    "scipy.stats.zscore": lambda x, send: scipy.stats.zscore(x),
    "scipy.stats.skew": lambda x, send: scipy.stats.skew(x),
    "scipy.stats.ttest_1samp": lambda x, send: scipy.stats.ttest_1samp(x, 5.0).statistic,
    "scipy.fft.rfft": lambda x, send: scipy.fft.rfft(x),
    "array_api_extra.cov": lambda x, send: xpx.cov(x.T),
    "array_api_extra.pad": lambda x, send: xpx.pad(x, 1),
    "array_api_extra.at": lambda x, send: xpx.at(x)[0, :].set(7.0),
    "array_api_extra.kron": lambda x, send: xpx.kron(x[:2, :2], x[2:4, :2]),
    "array_api_compat": lambda x, send: array_api_compat.array_namespace(x).sum(x, axis=0),
    "einops.rearrange": lambda x, send: einops.array_api.rearrange(x, "(a b) c -> b (a c)", b=3),
    "einops.reduce": lambda x, send: einops.array_api.reduce(x, "(a b) c -> a c", "max", b=5),
    "opt_einsum.contract": lambda x, send: opt_einsum.contract("ij,kj,kl->il", x, x, x),
}
NUMBERS = ("accuracy_score", "r2_score")  # are given as Python's


def main() -> int:
    warnings.simplefilter("ignore")
    wrong = 0
    with il.connect(devices=["cpu:0"]), config_context(array_api_dispatch=True):
        for name, check in CHECKS.items():
            try:
                found = check(il.asarray(HOST), il.asarray)
                wanted = check(HOST, np.asarray)
                assert name in NUMBERS or isinstance(found, il.Array), type(found)
                assert np.allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=1e-7)
            except Exception as error:
                wrong += 1
                print(f"{name}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - wrong} of {len(CHECKS)}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
