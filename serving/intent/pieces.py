"""Cuts a text into the encoder's word pieces: the most probable cut under a unigram model.

The same pieces, scores and character replacements as XLM-RoBERTa's SentencePiece model, less those that neither
English nor Chinese needs. Source: Kudo, "Subword Regularization" (2018), section 3.2, the Viterbi search.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.intent.ngram import HEAD, TAIL

START, END, UNKNOWN = 0, 2, 3
SPECIAL = 4
"""The first four pieces stand for start, padding, end and unknown, and are no text."""

SPACE = "\u2581"


class Pieces:
    """``windows(text)`` gives piece numbers in one list or two, each with start and end, at most ``most`` long."""

    def __init__(
        self, pieces: Sequence[str], scores: Sequence[float], replaced: dict[int, str], most: int
    ) -> None:
        self._replaced = replaced
        self._found = {p: (i, scores[i]) for i, p in enumerate(pieces) if i >= SPECIAL}
        self._longest = max(map(len, self._found))
        self._unknown = min(scores) - 10.0
        self._most = most

    def windows(self, text: str) -> list[list[int]]:
        """Piece numbers of the text, lower-cased. Characters without a piece become the unknown piece.

        A text too long for one list is cut in the middle; of one too long for two the middle is not read.
        """
        if len(text) > HEAD + TAIL:
            text = f"{text[:HEAD]} {text[-TAIL:]}"
        clean = SPACE + SPACE.join(text.lower().translate(self._replaced).split())
        body = self._best_cut(clean)
        room = self._most - 2
        if len(body) <= room:
            return [[START, *body, END]]
        half = min((len(body) + 1) // 2, room)
        return [[START, *body[:half], END], [START, *body[max(half, len(body) - room) :], END]]

    def _best_cut(self, text: str) -> list[int]:
        length, longest, found = len(text), self._longest, self._found
        best = [0.0] + [-1e30] * length
        came: list[tuple[int, int]] = [(0, UNKNOWN)] * (length + 1)
        for start in range(length):
            so_far = best[start]
            for end in range(start + 1, min(length, start + longest) + 1):
                piece = found.get(text[start:end])
                if piece is not None and so_far + piece[1] > best[end]:
                    best[end] = so_far + piece[1]
                    came[end] = (start, piece[0])
            if so_far + self._unknown > best[start + 1]:
                best[start + 1] = so_far + self._unknown
                came[start + 1] = (start, UNKNOWN)
        cut: list[int] = []
        at = length
        while at > 0:
            at, piece_number = came[at]
            cut.append(piece_number)
        return cut[::-1]
