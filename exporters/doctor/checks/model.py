"""The model's folder: there, readable, with its weights. Asked by a process of its own, as it may lie on a stuck mount."""

from __future__ import annotations

from collections.abc import Iterator

from exporters.doctor import apart, places
from exporters.doctor.check import Finding, Node, register
from exporters.doctor.files import listed, size

SECONDS = 8.0


def model(node: Node) -> Iterator[Finding]:
    folder = places.model(node)
    default = node.key("model.path", "default") == "default"
    expected = "config.json and weights, readable"
    try:
        found = apart.probe("model", [folder], SECONDS - 2, node.environ)
    except apart.ProbeError as error:
        cure = "its mount hangs: see the rows of storage" if error.hung else ""
        yield Finding("folder", f"{folder}: {error}", "fail" if error.hung else "unknown", expected, cure)
        return
    if not found["exists"]:
        if default:
            cure = "exaserve up prepares it"
            yield Finding("folder", f"{folder}: not prepared yet", "not here", expected, cure)
        else:
            yield Finding(
                "folder", f"{folder}: {found['error']}", "fail", expected, "model.path in exaserve.yaml"
            )
        return
    if found["unreadable"]:
        cure = f"chmod -R a+rX {folder}"
        value = f"{folder}: can't read {listed(found['unreadable'])}"
        yield Finding("folder", value, "fail", expected, cure)
    elif not found["config"] or not found["weights"]:
        missing = "config.json" if not found["config"] else "weights (*.safetensors, *.bin, *.gguf, *.pt)"
        cure = "download it again, or correct model.path in exaserve.yaml"
        yield Finding("folder", f"{folder}: no {missing}", "fail", expected, cure)
    else:
        value = f"{folder}: {found['weights']} weight files, {size(found['bytes'])}"
        yield Finding("folder", value, "ok", expected)
        # Two nodes with other weights under one name answer differently.
        yield Finding("bytes of weights", str(found["bytes"]), "ok", "the same on every node", compare="fail")


register("model", "the model's folder is there and readable", model, SECONDS)
