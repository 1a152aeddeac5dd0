"""Looks into one model folder. Runs alone, for it may lie on a stuck mount.

Argument: the folder (or one file of weights). Prints {"exists", "error", "config", "weights", "bytes",
"unreadable"}: whether there is a config.json, how many files of weights of how many bytes, names that can't be read.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


def main(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "exists": False,
        "error": "",
        "config": False,
        "weights": 0,
        "bytes": 0,
        "unreadable": [],
    }
    try:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
        os.stat(path)
    except OSError as error:
        found["error"] = error.strerror
        return found
    found["exists"] = True
    found["config"] = "config.json" in names or path.endswith(".gguf")
    for name in names[:4096]:
        file = os.path.join(path, name) if name else path
        weights = file.endswith(_WEIGHTS)
        if not (weights or file.endswith(".json")):
            continue
        try:
            with open(file, "rb") as f:
                f.read(16)
                found["weights"] += weights
                found["bytes"] += os.fstat(f.fileno()).st_size if weights else 0
        except OSError:
            found["unreadable"].append(name or file)
    return found


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
