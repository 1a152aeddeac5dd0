"""Alerts' templates are filled as Prometheus fills them: promtool is asked with the same labels and values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.templates import fill

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)

#: Templates as rule files have them, to be filled with the labels and the value below.
TEMPLATES = [
    "{{ $labels.a }} and {{$labels.none}}.",
    "{{ $value }} {{ $value | humanize }} {{ $value | humanizePercentage }} {{ $value | humanizeDuration }}",
    '{{ printf "%.2f of %s" $value $labels.a }} {{ $value | printf "%.0f" }}',
    "{{ with $labels.a }}(a {{ . }}){{ end }}{{ with $labels.none }}(none {{ . }}){{ else }}-{{ end }}",
    '{{ if eq $labels.a "x y" }}yes{{ else }}no{{ end }}{{ if $labels.none }}no{{ end }}',
    "{{ $value | humanize1024 }} {{ $labels.a | toUpper }}",
    "{{ with printf `series{a=%q}` $labels.a | query }}{{ . | first | value | humanize }}{{ end }}",
    "{{ range query `series` }}{{ .Labels.a }}={{ .Value }}{{ end }}",
    "{{ with query `series` }}{{ . | first | label `a` }}{{ end }}",
]


@needs_promtool
@pytest.mark.parametrize("value", [0.9712, 93.0, 7384.5, 123456789.0])
def test_templates_are_filled_as_prometheus_fills_them(tmp_path: Path, value: float) -> None:
    labels = {"a": "x y"}
    names = [f"t{i}" for i in range(len(TEMPLATES))]
    rule = {"alert": "A", "expr": "series", "annotations": dict(zip(names, TEMPLATES, strict=True))}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    ours = {name: fill(text, labels, value) for name, text in zip(names, TEMPLATES, strict=True)}
    series = [{"series": 'series{a="x y"}', "values": f"{value}x3"}]
    alerts = [{"exp_labels": labels, "exp_annotations": ours}]
    case = {"interval": "1m", "input_series": series}
    case["alert_rule_test"] = [{"eval_time": "1m", "alertname": "A", "exp_alerts": alerts}]
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    check = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "case.yaml"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_what_is_not_known_of_a_template_stays_as_it_is() -> None:
    assert (
        fill("a {{ tmpl `x` }} {{ $value | strange }}", {}, 1.0) == "a {{ tmpl `x` }} {{ $value | strange }}"
    )
