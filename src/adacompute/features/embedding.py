"""Embedding: sentence embeddings of questions by a frozen encoder.

The encoder is a directory with an ONNX model (``model.onnx``) and a tokenizer (``tokenizer.json``),
as sentence-transformers models are published. Token embeddings are averaged and scaled to length 1.
Texts are encoded one by one: in quantised models, an embedding would otherwise depend on the texts
beside it. A user names a feature set of embeddings ``embedding:DIRECTORY``. A file names no path:
`pin_encoder` makes it ``embedding:#DIGEST``, and the encoder of this digest must be in the
directory that the user named in this process or in the environment. Only this module imports
tokenizers.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.core.types import Float32Array
from adacompute.features.onnx_session import open_session

EXTRA, PREFIX = "embedding", "embedding:"
DIRECTORY = "ADACOMPUTE_ENCODER"
"""Environment variable with the directory of the encoder that bundles were trained with."""

MODEL, TOKENIZER = "model.onnx", "tokenizer.json"
MAX_TOKENS = 256
"""Further tokens of a text are ignored."""

_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_MIN_LENGTH = 1e-9
_RECORDED = re.compile(f"{PREFIX}#[0-9a-f]{{16}}")
_NAMED: dict[str, str] = {}  # directories that the user named in this process, by digest


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen encoder of texts; ``digest`` identifies its model and tokenizer."""

    digest: str
    session: Any = field(repr=False)
    tokenizer: Any = field(repr=False)

    @property
    def n_dimensions(self) -> int:
        """Length of an embedding."""
        return int(self.session.get_outputs()[0].shape[-1])

    def encode(self, texts: Sequence[str | None]) -> Float32Array:
        """Return the embedding of each text, (N, D); a null is an empty text."""
        embeddings = np.zeros((len(texts), self.n_dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            embeddings[row] = self._encode_one(text or "")
        return embeddings

    def _encode_one(self, text: str) -> Float32Array:
        tokens = np.array([self.tokenizer.encode(text).ids], dtype=np.int64)
        known = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "token_type_ids": np.zeros_like(tokens),
        }
        inputs = {one.name: known[one.name] for one in self.session.get_inputs()}
        output = np.asarray(self.session.run(None, inputs)[0], dtype=np.float32)[0]
        mean = output.mean(axis=0) if output.ndim > 1 else output
        return np.asarray(mean / max(float(np.linalg.norm(mean)), _MIN_LENGTH), dtype=np.float32)


def is_embedding(features: str) -> bool:
    """Whether a feature set is one of embeddings."""
    return features.startswith(PREFIX)


def find_encoder(features: str) -> Encoder:
    """Return the encoder that the name of a feature set gives; the digest in it must match."""
    folder, _, digest = features.removeprefix(PREFIX).partition("#")
    if digest:
        folder = _NAMED.get(digest) or os.environ.get(DIRECTORY, "")
    if not folder:
        raise ConfigError(
            f"the policy was trained with the encoder {digest!r}, whose directory is never taken "
            f"from a file: give it in the environment, {DIRECTORY}=DIRECTORY"
        )
    try:
        files = [(Path(folder) / name).stat() for name in (MODEL, TOKENIZER)]
        encoder = _load_encoder(folder, *(file.st_mtime_ns for file in files))
    except OSError as error:
        raise ConfigError(
            f"{folder!r} is no encoder: it needs {MODEL} and {TOKENIZER} ({error.strerror}: "
            f"{error.filename})"
        ) from None
    if digest not in ("", encoder.digest):
        raise ConfigError(
            f"the encoder in {folder} has the digest {encoder.digest}, but the policy was trained "
            f"with {digest}: restore that encoder, or train again"
        )
    return encoder


def pin_encoder(features: str) -> str:
    """Return the name of a feature set for files: with the digest of its encoder, if any."""
    if not is_embedding(features):
        return features
    folder, digest = features.removeprefix(PREFIX), find_encoder(features).digest
    if not folder.startswith("#"):
        _NAMED[digest] = str(Path(folder).resolve())
    return f"{PREFIX}#{digest}"


def check_recorded_features(features: str, notes: Mapping[str, Any]) -> None:
    """Refuse features of a file that name the directory of an encoder, or no text at all."""
    parameters = notes.get("parameters")
    known = (notes, parameters if isinstance(parameters, Mapping) else {})
    for name in (features, *(one.get("features", "") for one in known)):
        if not isinstance(name, str) or (is_embedding(name) and not _RECORDED.fullmatch(name)):
            raise ConfigError(
                f"the features {name!r} name the directory of an encoder, which is never taken "
                "from a file: train it again"
            )


@lru_cache(maxsize=4)
def _load_encoder(folder: str, *_times: int) -> Encoder:
    """Load the model and the tokenizer of a directory; the times of its files are for the cache."""
    with needs_extra(EXTRA):
        from tokenizers import Tokenizer

    model, tokens = ((Path(folder) / name).read_bytes() for name in (MODEL, TOKENIZER))
    try:
        session = open_session(model, extra=EXTRA)
        tokenizer = Tokenizer.from_buffer(tokens)
    except ValueError as error:
        raise ConfigError(f"the encoder in {folder} cannot be loaded: {error}") from None
    if not {one.name for one in session.get_inputs()} <= _INPUTS:
        raise ConfigError(f"the model in {folder} is no encoder of tokens")
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    digest = hashlib.blake2b(model + tokens, digest_size=8).hexdigest()
    return Encoder(digest, session, tokenizer)
