"""Finds the wanted lines on an engine's metrics page, and says what a make's table of names makes of them.

A page of vLLM 0.32 has 430 samples in 50 KB: a full parser takes 8 ms for it, this a tenth of a millisecond.
Which names matter and what they mean is each make's own file (``_vllm.py``, ``_sglang.py``, ``_tensorrt_llm.py``);
fetching the page is ``engine.py``.

A ``rank`` is one engine of a page: a data-parallel rank of vLLM and SGLang, a worker process under Ray. Counters
keep it as a label. If they were added up, the restart of one of two engines would look to Prometheus as if the
other had done all its life's work at once. Gauges are added up: a level has no resets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from exporters.registry import Sample

#: Bytes of one line that is read. The longest of vLLM's, its configuration, has 1.5 KB.
MAX_LINE = 16 * 1024
#: Wanted samples of one page. 64 data-parallel ranks have some 2,000; a page with more is no engine's, and would cost
#: the other replicas their time.
MAX_SAMPLES = 10_000
#: Bytes of a label set that is remembered.
_MAX_KEPT = 1024

# A name begins where no name's letter stands before it: without that, a long run of letters takes hours, in which
# nothing else of this process runs.
_LABEL = re.compile(rb'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Labels = Mapping[str, str]
#: The samples of one name: labels and value.
Lines = list[tuple[Labels, float]]
#: (model, rank).
Engine = tuple[str, str]
#: Values by model, rank and further label values.
Cells = dict[tuple[str, ...], float]


class Row(NamedTuple):
    """One catalogue metric and where a make has it.

    ours: name in the catalogue; ``…_total`` is kept by rank, anything else added up over the ranks.
    theirs: names without the make's prefix, newest first; the first that the page has counts, for a page in
    transition has both and both mean the same. by: the engine's label whose value becomes our last one.
    fixed: values of our last labels. factor: ours = theirs x factor.
    """

    ours: str
    theirs: tuple[str, ...]
    by: str = ""
    fixed: tuple[str, ...] = ()
    factor: float = 1.0


class Vital(NamedTuple):
    """Whether one engine lives. work: its requests, running and waiting. signs: numbers that move as it works."""

    work: float
    signs: tuple[float, ...]


class Reading(NamedTuple):
    """What one page says. make: value of the label ``engine``; version_at: path that tells its version, or ""."""

    make: str
    samples: list[Sample]
    vitals: dict[Engine, Vital]
    version_at: str = ""


class Page:
    """The wanted lines of one page, by name without ``prefix``."""

    def __init__(
        self, found: Mapping[str, Lines], rank_of: Callable[[Labels], str], model_label: str = "model_name"
    ) -> None:
        self._found = found
        self._rank_of = rank_of
        self._label = model_label
        self._cells: dict[tuple[str, str], Cells] = {}
        models = {m for lines in found.values() for labels, _ in lines if (m := labels.get(model_label))}
        #: The model where a line does not say it; empty if the page has several.
        self.only = models.pop() if len(models) == 1 else ""

    def lines(self, *names: str) -> Lines:
        """The lines of the first name that the page has."""
        for name in names:
            if name in self._found:
                return self._found[name]
        return []

    def engine(self, labels: Labels) -> Engine:
        return labels.get(self._label) or self.only, self._rank_of(labels)

    def cells(self, *names: str, by: str = "") -> Cells:
        """Values by engine (and label ``by``); further labels are added up. Lines of no model are passed over.

        Not to be changed: it is kept and given again.
        """
        for name in names:
            if name in self._found:
                break
        else:
            return {}
        known = self._cells.get((name, by))
        if known is not None:
            return known
        cells: Cells = {}
        for labels, value in self._found[name]:
            model = labels.get(self._label) or self.only
            if model:
                rank = self._rank_of(labels)
                key = (model, rank, labels.get(by, "")) if by else (model, rank)
                cells[key] = cells.get(key, 0.0) + value
        self._cells[name, by] = cells
        return cells

    def samples(self, rows: Iterable[Row], replica: str) -> list[Sample]:
        """The catalogue's samples of a make's table."""
        samples = []
        for ours, theirs, by, fixed, factor in rows:
            cells = self.cells(*theirs, by=by)
            if not cells:
                continue
            if not ours.endswith("_total"):
                cells = over_ranks(cells)
            samples += [
                Sample(ours, (replica, *key, *fixed), value if factor == 1.0 else value * factor)
                for key, value in cells.items()
            ]
        return samples

    def vitals(
        self, work: Iterable[tuple[str, ...]], signs: Iterable[tuple[str, ...]]
    ) -> dict[Engine, Vital]:
        """By engine, out of the names of what is work and of what moves; only where the page has both."""
        doing: dict[Engine, float] = {}
        moving: dict[Engine, list[float]] = {}
        for names in work:
            for (model, rank), value in self.cells(*names).items():
                doing[model, rank] = doing.get((model, rank), 0.0) + value
        for names in signs:
            for (model, rank), value in self.cells(*names).items():
                moving.setdefault((model, rank), []).append(value)
        return {e: Vital(load, tuple(moving[e])) for e, load in doing.items() if e in moving}


def over_ranks(cells: Cells) -> Cells:
    """Added up over the ranks: keys lose their second part."""
    sums: Cells = {}
    for (model, _, *more), value in cells.items():
        key = (model, *more)
        sums[key] = sums.get(key, 0.0) + value
    return sums


def find(page: bytes, prefix: bytes, wanted: Collection[bytes]) -> dict[str, Lines]:
    """Every sample of the ``wanted`` names (with prefix), by name without prefix.

    Lines that are no sample, have no finite value or are longer than MAX_LINE are passed over. Raises ValueError if
    there are more than MAX_SAMPLES.
    """
    found: dict[str, Lines] = {}
    skip, count = len(prefix), 0
    for line in page.split(b"\n"):
        if not line.startswith(prefix):
            continue
        brace = line.find(b"{")
        end = brace if brace > 0 else line.find(b" ")
        if line[:end] not in wanted or len(line) > MAX_LINE:
            continue
        labels, rest = _NONE, line[end:]
        if brace > 0:
            close = line.rfind(b"}")
            if close < 0:
                continue
            raw, rest = line[brace : close + 1], line[close + 1 :]
            labels = _labels(raw) if len(raw) <= _MAX_KEPT else _read_labels(raw)
        try:
            value = float(rest.split(None, 1)[0])  # a timestamp may follow
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            if (count := count + 1) > MAX_SAMPLES:
                raise ValueError(f"more than {MAX_SAMPLES} samples of an engine on its page")
            found.setdefault(line[skip:end].decode(), []).append((labels, value))
    return found


_NONE: Labels = {}


def _read_labels(raw: bytes) -> Labels:
    return {key.decode(): unescaped(value) for key, value in _LABEL.findall(raw)}


def unescaped(value: bytes) -> str:
    """A label's value as it is meant, from between its quotes."""
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], value.decode(errors="replace"))


#: Engines of a fleet write the same few label sets at every scrape.
_labels = lru_cache(maxsize=16_384)(_read_labels)


def by_model(engines: Iterable[Engine]) -> dict[str, list[str]]:
    """The ranks of each model, in the order of ``engines``."""
    ranks: dict[str, list[str]] = {}
    for model, rank in engines:
        ranks.setdefault(model, []).append(rank)
    return ranks


def whole(text: str | None) -> float | None:
    """A positive whole number out of a label; None for ``None`` and anything else."""
    fits = text and text.isascii() and text.isdigit() and len(text) < 16 and int(text)
    return float(fits) if fits else None
