"""Drive every device of a machine from one Python program, as if it were NumPy.

    import interlock as il

    with il.connect(devices=["cpu:0", "cpu:1"]) as session:
        x = il.ones((1000, 1000), device="cpu:0")
        y = (x @ x).to("cpu:1")     # returns at once; the copy leaves when the product is ready
        print(y.sum())              # the only place that waits

Names are loaded when first used, so that a worker process never imports the frontend.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ERRORS = (
    "InterlockError", "WorkerLost", "OutOfDeviceMemory", "Cancelled", "ProtocolError", "DeviceLost", "Unreachable",
)  # fmt: skip
_CLIENT = ("connect", "default_devices", "default_session", "synchronize")
__array_api_version__ = "2024.12"
__array_api_versions__ = ("2021.12", "2022.12", "2023.12", "2024.12")

_NUMPY = (
    "pi", "e", "inf", "nan", "newaxis", "euler_gamma", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_WHERE = {
    **dict.fromkeys(_ERRORS, "protocol.errors"),
    **dict.fromkeys(_CLIENT, "coordinator.client"),
    "Array": "coordinator.array",
    "CaptureError": "coordinator.recording",
    "__array_namespace_info__": "coordinator.inspection",
    "ImplicitRead": "coordinator.reading",
    "ImplicitReadWarning": "coordinator.reading",
    "capture": "coordinator.capture",
    "grad": "coordinator.autograd",
    "stop_gradient": "coordinator.autograd",
    "value_and_grad": "coordinator.autograd",
    "vjp": "coordinator.autograd",
    "Device": "coordinator.lane",
    "Save": "coordinator.checkpoints",
    "Session": "coordinator.session",
    "explain": "coordinator.waiting",
    "load": "coordinator.checkpoints",
    "save": "coordinator.checkpoints",
    "trace": "coordinator.tracing",
    "Trace": "coordinator.tracing",
}


_MODULES = ("fft", "linalg", "random")


def _load(module: str) -> Any:
    """A module, whole even if Ctrl-C comes meanwhile."""
    from .coordinator.uninterrupted import uninterrupted

    with uninterrupted():
        return import_module(module, __name__)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        found = getattr(_load(f".{_WHERE[name]}"), name)
    elif name in _MODULES:
        found = _load(f".coordinator.{name}")
    elif name in _NUMPY:
        found = getattr(_load("numpy"), name)
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        functions = _load(".coordinator.functions")
        if name not in functions.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(functions, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    functions = import_module(".coordinator.functions", __name__)
    return sorted({*_WHERE, *_NUMPY, *functions.__all__, *_MODULES, "__version__"})
