"""Inference: run a learned model, in the same way in evaluation and in service.

Trees are written as one ONNX node and run by onnxruntime. So the model that is evaluated is the
model that is served, a single question takes microseconds, and a bundle needs no pickle. The
converter is our own: it covers exactly the tree ensembles that ``learners`` fits, with any number
of outputs (common converters get several outputs wrong). Any other model is refused before it is
run: an ONNX file can loop, ask for any amount of memory and name other files. This module does not
know training.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from adacompute.core.errors import BundleError, needs_extra
from adacompute.core.types import Float32Array, FloatArray, IntArray
from adacompute.features.onnx_session import open_session

OPSET, IR_VERSION = 3, 8  # of ai.onnx.ml and of the file: every onnxruntime reads these
ENSEMBLE, DOMAIN = "TreeEnsembleRegressor", "ai.onnx.ml"
UNSEEN_LEVEL_SCORE = -1e9
"""Score of a level that was never the best one in training."""

UNSEEN_LEVEL: dict[str, list[Any]] = {
    "left_children": [-1],
    "right_children": [-1],
    "split_indices": [0],
    "split_conditions": [UNSEEN_LEVEL_SCORE],
    "default_left": [0],
}
"""The tree of such a level, a single leaf."""


class Predictor(Protocol):
    """A learned function from features to one number per level."""

    def predict(self, features: Float32Array) -> FloatArray:
        """Return the scores (N, K) of features (N, F)."""


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """An ONNX model: its bytes, and a session to run it."""

    data: bytes = field(repr=False)
    session: Any = field(init=False, repr=False)
    n_outputs: int = field(init=False)

    def __post_init__(self) -> None:
        _check_trees(self.data)
        try:
            session = open_session(self.data, extra="router")
        except ValueError as error:
            raise BundleError(f"onnxruntime cannot load the model: {error}") from None
        scores = session.get_outputs()
        if [one.name for one in session.get_inputs()] != ["features"] or len(scores) != 1:
            raise BundleError("the model does not map features to scores: train it again")
        object.__setattr__(self, "session", session)
        object.__setattr__(self, "n_outputs", scores[0].shape[-1])

    def predict(self, features: Float32Array) -> FloatArray:
        """Return the scores (N, K) of features (N, F)."""
        (scores,) = self.session.run(None, {"features": features})
        return np.asarray(scores, dtype=np.float64)


def _check_trees(data: bytes) -> None:
    """Raise BundleError unless a model is one ensemble of trees, as `trees_to_onnx` writes them."""
    with needs_extra("router"):
        import onnx
        from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        raise BundleError("onnxruntime cannot load the model: it is no ONNX file") from None
    graph = model.graph
    others = (graph.initializer, graph.sparse_initializer, model.functions, model.training_info)
    kinds = [(node.domain, node.op_type) for node in graph.node]
    if kinds != [(DOMAIN, ENSEMBLE)] or any(map(len, others)):
        raise BundleError("a model of the bundle is no ensemble of trees: train the policy again")
    kind = onnx.AttributeProto
    plain = {kind.INT, kind.INTS, kind.FLOATS, kind.STRING, kind.STRINGS}
    attributes = graph.node[0].attribute
    ends = [[one.dim_value for one in _shape(side)] for side in (graph.input, graph.output)]
    known = {one.name: onnx.helper.get_attribute_value(one) for one in attributes}
    if not {one.type for one in attributes} <= plain or not _are_bounded(known, *ends):
        raise BundleError("the trees of a model do not fit together: train the policy again")


def _shape(values: Any) -> Any:  # noqa: ANN401 - onnx has no types
    """Return the dimensions of the only input or output of a graph; none if there are several."""
    return values[0].type.tensor_type.shape.dim if len(values) == 1 else ()


def _are_bounded(known: dict[str, Any], inputs: list[int], outputs: list[int]) -> bool:
    """Whether trees read and write within their inputs and outputs, and every walk ends."""
    try:
        node, true, false, feature, target = (
            np.array(known[name], dtype=np.int64)
            for name in (
                "nodes_nodeids",
                "nodes_truenodeids",
                "nodes_falsenodeids",
                "nodes_featureids",
                "target_ids",
            )
        )
        is_leaf = np.array(known["nodes_modes"]) == b"LEAF"
        ends = is_leaf | ((true > node) & (false > node))
        (_, n_features), (_, n_outputs) = inputs, outputs
    except (KeyError, ValueError):
        return False
    fits = [(feature >= 0) & (feature < n_features), (target >= 0) & (target < n_outputs), ends]
    return known.get("n_targets") == n_outputs and all(one.all() for one in fits)


def trees_to_onnx(raw: bytes, *, n_features: int, n_outputs: int, output_of: IntArray) -> bytes:
    """Convert a booster, in xgboost's JSON format, to ONNX with raw scores as outputs.

    ``output_of[g]`` is the output that the booster's group g adds to. Outputs without a group score
    UNSEEN_LEVEL_SCORE.
    """
    with needs_extra("router"):
        import onnx

    learner = json.loads(raw)["learner"]
    model = learner["gradient_booster"]["model"]
    base = np.atleast_1d(json.loads(learner["learner_model_param"]["base_score"]))
    base_values = np.zeros(n_outputs)
    base_values[output_of] = np.broadcast_to(base, len(output_of))
    trees = [*zip(model["trees"], output_of[model["tree_info"]].tolist(), strict=True)]
    trees += [(UNSEEN_LEVEL, one) for one in range(n_outputs) if one not in output_of]
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    for number, (tree, output) in enumerate(trees):
        for name, values in _list_nodes(tree, number, output).items():
            columns[name] += values
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    names = ["features"], ["scores"]
    options: dict[str, Any] = {
        "n_targets": n_outputs,
        "base_values": base_values.tolist(),
        **columns,
    }
    ensemble = helper.make_node(ENSEMBLE, *names, domain=DOMAIN, **options)
    ends = (
        [helper.make_tensor_value_info("features", floats, [None, n_features])],
        [helper.make_tensor_value_info("scores", floats, [None, n_outputs])],
    )
    opsets = [helper.make_opsetid(DOMAIN, OPSET), helper.make_opsetid("", 17)]
    graph = helper.make_graph([ensemble], "trees", *ends)
    written = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return bytes(written.SerializeToString())


def _list_nodes(tree: dict[str, list[Any]], number: int, output: int) -> dict[str, list[Any]]:
    """Return the nodes and leaves of a tree as attributes of an ensemble."""
    left, right, values = tree["left_children"], tree["right_children"], tree["split_conditions"]
    leaves = [i for i, child in enumerate(left) if child == -1]
    return {
        "nodes_treeids": [number] * len(left),
        "nodes_nodeids": list(range(len(left))),
        "nodes_featureids": tree["split_indices"],
        "nodes_values": values,
        "nodes_modes": ["LEAF" if child == -1 else "BRANCH_LT" for child in left],
        "nodes_truenodeids": [max(0, child) for child in left],
        "nodes_falsenodeids": [max(0, child) for child in right],
        "nodes_missing_value_tracks_true": [int(flag) for flag in tree["default_left"]],
        "target_treeids": [number] * len(leaves),
        "target_nodeids": leaves,
        "target_ids": [output] * len(leaves),
        "target_weights": [values[i] for i in leaves],
    }
