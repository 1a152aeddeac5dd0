"""First stage: a linear model over words, pairs of words, and parts of words; a Chinese character is a word.

Training is in ``training.py``; here is what the router runs for each request, in pure Python. The score of a
label is the sum of its weights over the text's features, divided by the square root of the number of tokens;
the confidence is the softmax of that at the temperature found on folds held out in training.

Cost is kept down by two tricks. The weights of all labels of a feature are packed into one integer, a field of
``_FIELD`` bits a label, so that summing integers sums every label at once; up to three labels fit a machine
word, which ``sum`` adds without making objects. And a word's own weight and those of its parts are added up
once and kept, so that a word costs one look-up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving import compiled

if TYPE_CHECKING:
    from serving.intent.scan import Scan

FORMAT = "exaserve-intent-ngram"
VERSION = 1

HEAD, TAIL = 240, 120
"""Characters looked at, from the start and from the end: people ask first or last, documents lie between."""

MOST_TOKENS = 72
"""Tokens looked at, four fifths of them from the start."""

SCALE = 256
"""Weights are whole numbers of 1/256."""

LARGEST = 2 * SCALE
"""Weights are at most this far from 0, so that no sum over ``MOST_TOKENS`` leaves its field."""

_FIELD = 20
_HALF = 1 << (_FIELD - 1)
_MASK = (1 << _FIELD) - 1
_FIELDS_OF_A_WORD = 3

WORD, PAIR, PART = "1", "2", "~"
"""What names of features start with: a token, two tokens written together, a part of a word."""

MAX_WORDS = 100_000
"""Words whose sum is remembered. Later unknown ones are worked out each time: slower, never more memory."""

PART_LENGTHS = (3, 4, 5)
_MAX_WORD = 24
"""Longer words (keys, addresses, base64) are cut: nothing past that says what a text is about."""


class ModelError(ValueError):
    """A model file that is missing, damaged, or of another kind or version; the text names file and cure."""


def _wide(point: int) -> bool:
    """Whether a character is a token of its own: Chinese, Japanese kana, Korean syllables."""
    return (
        0x3400 <= point <= 0x9FFF
        or 0x3040 <= point <= 0x30FF
        or 0xAC00 <= point <= 0xD7AF
        or 0xF900 <= point <= 0xFAFF
        or 0x20000 <= point <= 0x3FFFF
    )


class _Characters(dict[int, str]):
    """What each character becomes before the text is split at spaces; filled as characters turn up."""

    def __missing__(self, point: int) -> str:
        char = chr(point)
        if 0xFF01 <= point <= 0xFF5E:  # full-width forms of ASCII
            said = self[point - 0xFEE0].lower()
        elif char in "'’`":
            said = ""  # don't, dont and don’t are one word
        elif char.isdigit():
            said = "0"
        elif _wide(point):
            said = f" {char} "
        elif char.isalpha():
            said = char
        else:
            said = " "
        if len(self) < 60_000:
            self[point] = said
        return said


_CHARACTERS = _Characters()


def tokens(text: str) -> list[str]:
    """The text as the model reads it: lower-case words, digits as 0, each Chinese character by itself."""
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]} {text[-TAIL:]}"
    found = text.lower().translate(_CHARACTERS).split()
    if len(found) > MOST_TOKENS:
        return found[: MOST_TOKENS * 4 // 5] + found[-(MOST_TOKENS // 5) :]
    return found


def parts(word: str) -> list[str]:
    """Character runs of a word between ``<`` and ``>``; none for a single Chinese character."""
    if len(word) == 1 and not word.isascii():
        return []
    marked = f"<{word[:_MAX_WORD]}>"
    return [marked[i : i + n] for n in PART_LENGTHS for i in range(len(marked) - n + 1)]


class _Words(dict[str, int]):
    """Packed weight of each word with its parts; a new one is worked out at its first look-up."""

    def __init__(self, own: Mapping[str, int], of_parts: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._own, self._parts = own, of_parts

    def __missing__(self, word: str) -> int:
        total = self.worked_out(word)
        if len(self) < MAX_WORDS:
            self[word] = total
        return total

    def worked_out(self, word: str) -> int:
        """Its packed weight, from its own and those of its parts."""
        total = self._own.get(word, 0)
        found = parts(word)
        if found:
            known = [self._parts[p] for p in found if p in self._parts]
            sums = [sum(column) for column in zip(*known, strict=True)]
            total += pack(round(s / len(found)) for s in sums)
        return total


def pack(weights: Iterable[int]) -> int:
    """One signed integer out of the labels' weights; sums of such integers are the sums of the weights."""
    return sum(w << (_FIELD * i) for i, w in enumerate(weights))


class NgramModel:
    """A trained first stage. ``classify`` is what the router calls; it keeps no state but the word cache.

    ``features`` maps a feature's name to its weights in 1/256, one a label: its first character is its
    kind (``WORD``, ``PAIR``, ``PART``). ``prior`` has the labels' own weights (not divided by anything).
    """

    def __init__(
        self,
        labels: list[str],
        features: Mapping[str, tuple[int, ...]],
        prior: tuple[int, ...],
        temperature: float,
    ) -> None:
        if len(labels) < 2 or temperature <= 0:
            raise ModelError("a model needs two labels or more and a temperature above 0")
        self.labels = labels
        self.temperature = temperature
        own: dict[str, int] = {}
        of_parts: dict[str, tuple[int, ...]] = {}
        pairs: dict[str, int] = {}
        tables = {WORD: own, PAIR: pairs}
        for name, weights in features.items():
            kind, text = name[:1], name[1:]
            if kind == PART:
                of_parts[text] = weights
            else:
                tables[kind][text] = pack(weights)
        self._words = _Words(own, of_parts)
        for word in own:
            self._words[word]  # filled now rather than under load
        self._pairs = pairs
        #: ``classify``, or the same compiled (``scan.py``): what the router calls.
        self.fast: Callable[[str], tuple[str, float]] = self.classify
        self._prior = [p / SCALE / temperature for p in prior]
        self._offset = pack([_HALF] * len(labels))
        self._shifts = [_FIELD * i for i in range(len(labels))]
        self._factor = [1 / (SCALE * temperature * math.sqrt(max(n, 1))) for n in range(MOST_TOKENS + 1)]
        if compiled.active() and len(labels) <= _FIELDS_OF_A_WORD:
            scan = self.scan()
            if scan.whole:
                self.fast = scan.classify

    def scan(self) -> Scan:
        """This model for ``scan.py``, which must be compiled. At most three labels."""
        from serving.intent.scan import Scan

        return Scan(
            self.labels,
            {word: self._unpack(packed) for word, packed in self._words.items()},
            {pair: self._unpack(packed) for pair, packed in self._pairs.items()},
            lambda word: self._unpack(self._words.worked_out(word)),
            lambda piece: piece.translate(_CHARACTERS),
            self._prior, self._factor, HEAD, TAIL, MOST_TOKENS, MAX_WORDS,
        )  # fmt: skip

    def _unpack(self, packed: int) -> tuple[int, ...]:
        packed += self._offset
        return tuple((packed >> shift & _MASK) - _HALF for shift in self._shifts)

    def classify(self, text: str) -> tuple[str, float]:
        """The most likely label and how sure that is, from 1/labels to 1. An empty text gets the likeliest."""
        scores = self.scores(text)
        best = max(scores)
        exp = math.exp
        total = 0.0
        for s in scores:
            total += exp(s - best)
        return self.labels[scores.index(best)], 1.0 / total

    def scores(self, text: str) -> list[float]:
        """Each label's score, already divided by the temperature: softmax gives the probabilities."""
        found = tokens(text)
        total = sum(map(self._words.__getitem__, found), self._offset)
        total += sum(map(self._pairs.get, map(add, found, found[1:]), repeat(0)))
        factor = self._factor[len(found)]
        return [
            ((total >> shift & _MASK) - _HALF) * factor + prior
            for shift, prior in zip(self._shifts, self._prior, strict=True)
        ]


def save(
    path: Path,
    labels: list[str],
    features: Mapping[str, tuple[int, ...]],
    prior: tuple[int, ...],
    temperature: float,
    about: dict[str, Any],
) -> None:
    """Write a model file: a compressed .npz of a JSON header, the features' names and their weights."""
    import numpy as np

    names = sorted(features)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "labels": labels,
        "prior": list(prior),
        "temperature": temperature,
        "scale": SCALE,
        "features": len(names),
        "about": about,
    }
    weights = np.array([features[n] for n in names], dtype=np.int16).reshape(len(names), len(labels))
    named = np.frombuffer("\n".join(names).encode(), dtype=np.uint8)
    write(path, header, {"names": named, "weights": np.ascontiguousarray(weights.T)})


def write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any], compress: bool = True) -> None:
    """Write header and arrays as ``read_header`` reads them, whole or not at all."""
    import os

    import numpy as np

    said = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), dtype=np.uint8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            (np.savez_compressed if compress else np.savez)(file, header=said, **arrays)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_ngram(path: Path) -> NgramModel:
    """Read a model file written by ``save``.

    Raises ModelError where it is missing, damaged, of another format or of a version this program lacks.
    """
    header, arrays = read_header(path, FORMAT, VERSION)
    try:
        names = bytes(arrays["names"]).decode().split("\n") if header["features"] else []
        columns = [column.tolist() for column in arrays["weights"]]
        labels = [str(label) for label in header["labels"]]
        if header["scale"] != SCALE or len(columns) != len(labels) or len(names) != header["features"]:
            raise ModelError(f"{path}: damaged: header and weights disagree; train it again")
        features = dict(zip(names, zip(*columns, strict=True), strict=True))
        return NgramModel(labels, features, tuple(header["prior"]), float(header["temperature"]))
    except (KeyError, TypeError, UnicodeDecodeError, ValueError, IndexError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path}: damaged ({type(error).__name__}: {error}); train it again") from None


def read_header(path: Path, format_: str, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of a model file, after checking what it is. Raises ModelError."""
    import zipfile
    import zlib

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(bytes(arrays.pop("header")).decode())
        found = header.get("format"), header.get("version")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such model file; exaserve intent train makes one") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error):
        raise ModelError(f"{path}: not an intent model; exaserve intent train makes one") from None
    if found[0] != format_:
        raise ModelError(f"{path}: holds {found[0]}, not {format_}")
    if found[1] != version:
        raise ModelError(f"{path}: version {found[1]}; this program reads version {version}; train it again")
    return header, arrays
