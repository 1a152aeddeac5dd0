"""Builders of the steps that plans are made of. Each is plain JSON; ``perform.py`` carries them out.

A step runs where the dead-man is: on this machine, or on the remote node. With ``node`` it acts inside that node: the
node's prefix is put before it, and its first process guards it (node gone: nothing left to undo; an error in an
injection). "In undo" below says what may be missing without being an error there.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from chaos.place import Identity, Node

Step = dict[str, Any]


def _on(node: Node | None, step: Step, argv: Sequence[str] | None = None) -> Step:
    prefix = [] if node is None or node.remote else list(node.prefix)
    if argv is not None:
        step["argv"] = [*prefix, *argv]
    elif prefix:
        step["prefix"] = prefix
    if node is not None and prefix and node.init is not None:
        step["inside"] = node.init
    return step


def run(
    argv: Sequence[str],
    node: Node | None = None,
    absent: Sequence[str] = (),
    timeout: float = 10.0,
    input: str = "",
) -> Step:
    """Run a program; it has to exit 0. absent: what it says (LC_ALL=C) when, in undo, there is nothing to undo."""
    step: Step = {"op": "run", "absent": list(absent), "timeout": timeout}
    if input:
        step["input"] = input
    return _on(node, step, argv)


def spawn(
    key: str,
    argv: Sequence[str],
    node: Node | None = None,
    ready: str = "",
    env: dict[str, str] | None = None,
    timeout: float = 10.0,
) -> Step:
    """Start a helper that runs until ``stop(key)`` and dies with the dead-man.

    ready: the step waits until its output contains this, for ``timeout`` seconds; without, that it lives after 50 ms.
    """
    return _on(node, {"op": "spawn", "key": key, "ready": ready, "env": env or {}, "timeout": timeout}, argv)


def stop(key: str) -> Step:
    """End the helper and everything that it started: SIGTERM, after 1 s SIGKILL."""
    return {"op": "stop", "key": key}


def unmount(path: str, ours: str, node: Node | None = None, lazy: bool = True) -> Step:
    """Unmount, but only while the topmost mount at the path has ``ours`` in its source or its root."""
    return _on(node, {"op": "unmount", "path": path, "ours": ours, "lazy": lazy})


def signal(who: Identity, name: str) -> Step:
    """Send a signal (``SIGSTOP``). In undo the process may be gone; another one with its pid is not touched."""
    return {"op": "signal", "who": who, "signal": name}


def end(who: Identity, grace: float = 2.0) -> Step:
    """SIGTERM, SIGKILL after ``grace`` seconds; done once the process is gone."""
    return {"op": "end", "who": who, "grace": grace}


def write(path: str, text: str, mode: int = 0o644, only_if: str | None = None) -> Step:
    """Write a regular file, whole or not at all. only_if: in undo, only while it holds exactly this text."""
    step: Step = {"op": "write", "path": path, "text": text, "mode": mode}
    if only_if is not None:
        step["only_if"] = only_if
    return step


def put(path: str, text: str) -> Step:
    """Write into a file of the kernel or a control file, in place. In undo it may be gone."""
    return {"op": "put", "path": path, "text": text}


def mkdir(path: str) -> Step:
    """Make a folder and those above it; it may be there."""
    return {"op": "mkdir", "path": path}


def remove(path: str) -> Step:
    """Remove a file or an empty folder; it may be gone."""
    return {"op": "remove", "path": path}


def rename(source: str, target: str) -> Step:
    """Rename; done already if only the target is there. Never replaces anything."""
    return {"op": "rename", "source": source, "target": target}


def post(url: str, body: dict[str, Any], node: Node | None = None, timeout: float = 3.0) -> Step:
    """POST JSON; 2xx is wanted. In undo nobody need listen any more. node: sent from inside it."""
    return _on(node, {"op": "post", "url": url, "body": body, "timeout": timeout})


def text(step: Step) -> str:
    """One line for people (dry run, describe)."""
    rest = {k: _short(v) for k, v in step.items() if k not in ("op", "inside", "absent", "timeout")}
    if step["op"] in ("run", "spawn"):
        return f"{step['op']}: {shlex.join(map(_short, step['argv']))}"
    if "who" in rest:
        rest["who"] = rest["who"]["pid"]
    return f"{step['op']}: " + ", ".join(f"{k} {v!r}" for k, v in rest.items())


def _short(value: Any) -> Any:
    """Programs and whole files, which are given as one text, would drown the rest."""
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:80]}… ({len(value)} characters)"
    return value
