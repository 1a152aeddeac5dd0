"""The classifier as the router sees it: a first stage that always answers, and a second for doubtful texts.

``load`` finds the files: NAME.npz is the first stage, NAME.encoder.npz beside it, if there, the second.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from serving.intent.ngram import ModelError, NgramModel, load_ngram
from serving.intent.transformer import TIME_LIMIT, SecondStage

MODELS = Path(__file__).with_name("models")
THRESHOLD = 0.7
"""Below this confidence of the first stage the second is asked (``router.intent.threshold``)."""


class Classifier:
    """``labels``, ``fast(text) -> (label, confidence)`` in microseconds, and ``second`` or None.

    ``fast`` is the first stage's own function: no call between it and the router. ``second`` starts its process
    at its first question, or at ``await second.start()``; whoever loads a classifier closes it.
    """

    def __init__(self, model: NgramModel, path: Path, encoder: Path | None, time_limit: float) -> None:
        self.path, self.encoder_path = path, encoder
        self.model = model
        self.labels: list[str] = list(model.labels)
        self.fast: Callable[[str], tuple[str, float]] = model.fast
        self.second = SecondStage(self.labels, path, encoder, time_limit) if encoder else None

    async def classify(self, text: str, threshold: float = THRESHOLD) -> tuple[str, float]:
        """Both stages: the first one's answer, or the second's where the first is unsure and the second in time."""
        answer = self.fast(text)
        if answer[1] >= threshold or self.second is None:
            return answer
        return await self.second.classify(text) or answer


def load(
    path: str | Path = "default", second_stage: bool = True, time_limit: float = TIME_LIMIT
) -> Classifier:
    """The bundled model (``default``) or that of a file which ``exaserve intent train`` wrote.

    ``time_limit`` in seconds is the second stage's. Raises ModelError, whose text names the file and the cure,
    where a file cannot be used; a second stage that is not there, or
    has no onnxruntime to run it, is no error.
    """
    file = MODELS / "default.npz" if str(path) == "default" else Path(path)
    encoder = encoder_beside(file)
    if second_stage and encoder.is_file() and find_spec("onnxruntime"):
        with encoder.open("rb") as opened:
            if opened.read(2) != b"PK":
                raise ModelError(f"{encoder}: not an intent model; delete it or train it again")
        return Classifier(load_ngram(file), file, encoder, time_limit)
    return Classifier(load_ngram(file), file, None, time_limit)


def encoder_beside(file: Path) -> Path:
    """Where the second stage of a first stage's file lies: ``mine.npz`` → ``mine.encoder.npz``."""
    return file.with_name(f"{file.name.removesuffix('.npz')}.encoder.npz")
