"""Logistic regression over two devices, each with half of the samples: the loss is written, `il.grad` does the rest.

The parameters live on the first device. Each device computes the loss of its own samples; on the way back the second
one's gradient travels to the first, and nobody says when. Ends with the accuracy beside scikit-learn's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from progress import Progress

import interlock as il

EXAMPLES: Final = """examples:
  python examples/logistic.py
  python examples/logistic.py --devices cpu:0,sim:0 --steps 50
"""


class Parameters(NamedTuple):
    weights: Any  # (features,)
    bias: Any  # ()


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="cpu:0,cpu:1", help="the first one holds the parameters; %(default)s")
    parser.add_argument("--steps", type=int, default=300, help="of gradient descent; %(default)s")
    parser.add_argument("--lr", type=float, default=2.0, help="learning rate; %(default)s")
    parser.add_argument("--decay", type=float, default=1e-3, help="L2 penalty on the weights; %(default)s")
    args = parser.parse_args(arguments)
    if args.steps < 1 or not args.lr > 0 or not args.decay >= 0:
        parser.error("--steps must be at least 1, --lr more than 0, --decay at least 0")
    return args


def tumours() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, y) to train with and (x, y) to test with: real data that comes with scikit-learn, standardized."""
    from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    data = load_breast_cancer()
    x, x_test, y, y_test = train_test_split(data.data, data.target.astype(float), test_size=0.3, random_state=0)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    return (x - mean) / deviation, y, (x_test - mean) / deviation, y_test


def train(devices: Sequence[Any], x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Parameters:
    """The parameters after all steps."""
    home = devices[0]
    parts = [
        (il.asarray(part, device=device), il.asarray(answers, device=device))
        for part, answers, device in zip(
            np.array_split(x, len(devices)), np.array_split(y, len(devices)), devices, strict=True
        )
    ]

    def loss_of(parameters: Parameters) -> Any:
        """The mean of log(1 + exp(-margin)) over all samples, on the first device."""
        total = args.decay * len(x) / 2 * (parameters.weights**2).sum()
        for part, answers in parts:
            scores = part @ parameters.weights.to(part.device) + parameters.bias.to(part.device)
            total = total + il.logaddexp(0.0, (1 - 2 * answers) * scores).sum().to(home)
        return total / len(x)

    @il.capture
    def step(parameters: Parameters, lr: float) -> tuple[Parameters, Any]:
        loss, gradient = il.value_and_grad(loss_of)(parameters)
        return Parameters(*[p - lr * g for p, g in zip(parameters, gradient, strict=True)]), loss

    parameters = Parameters(il.zeros(x.shape[1], device=home), il.zeros((), device=home))
    with Progress("step", args.steps) as progress:
        for number in range(args.steps):
            parameters, loss = step(parameters, args.lr)
            tenth = (number + 1) % max(args.steps // 10, 1) == 0
            progress.step(f"loss {float(loss):.4f}" if tenth else "")  # the only place that waits
    return parameters


def main(arguments: Sequence[str] | None = None) -> int:
    args = options(arguments)
    try:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError:
        print("logistic.py: error: needs scikit-learn: pip install 'interlock[examples]'", file=sys.stderr)
        return 2
    x, y, x_test, y_test = tumours()
    try:
        session = il.connect(devices=args.devices)
    except (ValueError, il.InterlockError) as error:
        print(f"logistic.py: error: {error}", file=sys.stderr)
        return 2
    with session:
        weights, bias = (np.asarray(each) for each in train(session.devices, x, y, args))
    accuracy = ((x_test @ weights + bias > 0) == y_test).mean()
    strength = 1 / (args.decay * len(x)) if args.decay else np.inf
    theirs = LogisticRegression(C=strength, max_iter=5000).fit(x, y)
    print(f"{x.shape[0]} samples over {args.devices}")
    print(f"scikit-learn's accuracy {theirs.score(x_test, y_test):.3f}")
    print(f"test accuracy {accuracy:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
