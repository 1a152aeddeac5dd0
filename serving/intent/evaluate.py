"""How good a classifier is on labelled texts: figures for ``exaserve intent eval``, and their table.

Nothing is trained here. The second stage runs in this process, so that the figures do not depend on what else
the machine does; its time is that of the computation, without the router's way to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from serving.intent import keywords
from serving.intent.classifier import Classifier
from serving.intent.lines import Example


def evaluate(classifier: Classifier, examples: Sequence[Example], threshold: float) -> dict[str, Any]:
    """Everything that ``--json`` prints, as plain data. Times in milliseconds, shares from 0 to 1.

    Labels of the examples that the model lacks count as errors. ``keyword_baseline`` is None where the labels
    are not the bundled ones.
    """
    second = _second(classifier)
    truth = [e.label for e in examples]
    first_answers, answers, keyword_answers = [], [], []
    first_times, second_times, times = [], [], []
    sent = 0
    for example in examples:
        began = time.perf_counter()
        label, confidence = classifier.fast(example.text)
        took = time.perf_counter() - began
        first_times.append(took)
        first_answers.append(label)
        if confidence < threshold and second is not None:
            sent += 1
            began = time.perf_counter()
            label, _ = second.classify(example.text)
            second_times.append(time.perf_counter() - began)
            took += second_times[-1]
        times.append(took)
        answers.append(label)
        keyword_answers.append(keywords.classify(example.text))
    labels = sorted(set(classifier.labels) | set(truth))
    known = set(truth) <= {"general", "legal", "medical"}
    result = {
        "examples": len(examples),
        "model": str(classifier.path),
        "threshold": threshold,
        **_accuracy(truth, answers, labels),
        "second_stage_share": _rounded(sent / len(examples)),
        "p50_ms": _quantile(times, 0.5),
        "p99_ms": _quantile(times, 0.99),
        "languages": {},
        "first_stage": {
            "accuracy": _share(truth, first_answers),
            "p50_ms": _quantile(first_times, 0.5),
            "p99_ms": _quantile(first_times, 0.99),
        },
        "second_stage": None
        if second is None
        else {"p50_ms": _quantile(second_times, 0.5), "p99_ms": _quantile(second_times, 0.99), "texts": sent},
        "keyword_baseline": {"accuracy": _share(truth, keyword_answers)} if known else None,
    }
    for language in sorted({e.lang for e in examples}):
        at = [i for i, e in enumerate(examples) if e.lang == language]
        part = _accuracy([truth[i] for i in at], [answers[i] for i in at], labels)
        part["first_stage"] = {"accuracy": _share([truth[i] for i in at], [first_answers[i] for i in at])}
        if known:
            part["keyword_baseline"] = {
                "accuracy": _share([truth[i] for i in at], [keyword_answers[i] for i in at])
            }
        result["languages"][language] = {"examples": len(at), **part}
    return result


def table(found: dict[str, Any]) -> str:
    """The figures that do not depend on the machine, as Markdown; ``timing`` has the others."""
    keyword = found["keyword_baseline"]
    lines = ["| texts | number | both stages | n-grams alone | keywords |", "|---|---:|---:|---:|---:|"]
    groups = {"all": found, **found["languages"]}
    for name, part in groups.items():
        base = f"{part['keyword_baseline']['accuracy']:.1%}" if keyword else "–"
        first = part["first_stage"]["accuracy"]
        lines.append(f"| {name} | {part['examples']} | {part['accuracy']:.1%} | {first:.1%} | {base} |")
    lines += ["", f"{found['second_stage_share']:.1%} of the texts went to the second stage.", ""]
    for name, part in groups.items():
        lines += [f"{name}:", "", *_matrix(part), ""]
    return "\n".join(lines).rstrip()


def timing(found: dict[str, Any]) -> str:
    """One line: milliseconds at the median and at the 99th percentile."""
    first, second = found["first_stage"], found["second_stage"]
    line = f"time: p50 {found['p50_ms']:.3f} ms, p99 {found['p99_ms']:.3f} ms"
    line += f" (n-grams: p50 {first['p50_ms']:.3f}, p99 {first['p99_ms']:.3f}"
    if second is not None and second["texts"]:
        line += f"; second stage: p50 {second['p50_ms']:.3f}, p99 {second['p99_ms']:.3f}"
    return line + ")"


def _matrix(part: dict[str, Any]) -> list[str]:
    names = list(part["confusion"])
    lines = [
        "| is \\ said | " + " | ".join(names) + " | recall | precision |",
        "|---|" + "---:|" * (len(names) + 2),
    ]
    for name in names:
        row = " | ".join(str(part["confusion"][name][said]) for said in names)
        label = part["labels"][name]
        lines.append(f"| {name} | {row} | {_percent(label['recall'])} | {_percent(label['precision'])} |")
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _second(classifier: Classifier) -> Any:
    if classifier.encoder_path is None:
        return None
    from serving.intent.encoder import load_encoder

    return load_encoder(classifier.encoder_path, classifier.model)


def _accuracy(truth: Sequence[str], answers: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    pairs = Counter(zip(truth, answers, strict=True))
    per_label = {}
    for label in labels:
        right = pairs[label, label]
        there = sum(pairs[label, said] for said in labels)
        said_so = sum(pairs[was, label] for was in labels)
        per_label[label] = {
            "examples": there,
            "recall": _rounded(right / there) if there else None,
            "precision": _rounded(right / said_so) if said_so else None,
        }
    return {
        "accuracy": _share(truth, answers),
        "labels": per_label,
        "confusion": {was: {said: pairs[was, said] for said in labels} for was in labels},
    }


def _share(truth: Sequence[str], answers: Sequence[str]) -> float:
    return _rounded(sum(t == a for t, a in zip(truth, answers, strict=True)) / len(truth))


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Milliseconds below which that share of the values lies; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 4)


def _rounded(share: float) -> float:
    return round(share, 4)
