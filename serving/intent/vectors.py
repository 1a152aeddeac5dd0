"""Vectors of common English and Chinese words, so that training knows words that its texts lack.

The file, ``models/words.npz``, was made once from a pretrained encoder (see the README). In training the
vectors of a text's words are a few dozen more features; what they weigh is then added to each word's own
weight, so that the first stage at run time knows nothing of vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from serving.intent.ngram import read_header

Floats = npt.NDArray[np.float32]

FORMAT = "exaserve-intent-words"
VERSION = 1
BUNDLED = Path(__file__).with_name("models") / "words.npz"


class WordVectors:
    """``names`` (features as ``training.features`` names them) and ``values``, shape (names, dimensions)."""

    def __init__(self, names: list[str], values: Floats) -> None:
        self.names, self.values = names, values
        self._at = {name: i for i, name in enumerate(names)}

    @classmethod
    def bundled(cls) -> WordVectors:
        """Those of the file. Raises ModelError where it is missing or damaged."""
        _, arrays = read_header(BUNDLED, FORMAT, VERSION)
        names = bytes(arrays["names"]).decode().split("\n")
        return cls(names, arrays["values"].astype(np.float32) * arrays["scale"].astype(np.float32))

    @classmethod
    def none(cls) -> WordVectors:
        """No vectors: training on the texts alone."""
        return cls([], np.zeros((0, 1), dtype=np.float32))

    def total(self, counted: Mapping[str, float]) -> Floats:
        """The sum of the vectors of a text's features, shape (dimensions,); zeros where none is known."""
        rows = [self._at[name] for name in counted if name in self._at]
        total: Floats = self.values[rows].sum(axis=0)
        return total
