"""ONNX session: run an ONNX model. Only this module imports onnxruntime."""

from __future__ import annotations

from typing import Any

from adacompute.core.errors import needs_extra


def open_session(model: bytes, *, extra: str) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Return a session on one thread; ValueError if the model cannot be loaded.

    Without onnxruntime it raises MissingExtra for this extra.
    """
    with needs_extra(extra):
        import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # failures are raised as exceptions
    errors = runtime.capi.onnxruntime_pybind11_state
    try:
        return runtime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
        errors.RuntimeException,
    ) as error:
        raise ValueError(str(error).splitlines()[0]) from None
