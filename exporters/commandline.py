"""Tells an engine's server by what it was started with: vLLM, SGLang, TensorRT-LLM, ExaServe's simulated replica.

Only the program itself counts: a shell, ``docker run`` or ``srun`` that has ``vllm serve`` among its arguments is
not the server. Finding the processes is ``exporters/processes.py``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
#: Python's own options that take the next argument.
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")

#: Modules that are a server by themselves, and the port each listens on unless told.
_MODULES = {
    "vllm.entrypoints.openai.api_server": ("vllm", 8000),
    "vllm.entrypoints.api_server": ("vllm", 8000),
    "sglang.launch_server": ("sglang", 30000),
    "tensorrt_llm.commands.serve": ("tensorrt_llm", 8000),
    "serving.engines.simulated": ("simulated", 0),
}
#: Programs that are a server if the word follows ("" where none is needed).
_PROGRAMS = {
    "vllm": ("serve", "vllm", 8000),
    "sglang": ("serve", "sglang", 30000),
    "trtllm-serve": ("", "tensorrt_llm", 8000),
}
#: The same for ``python -m``.
_PROGRAM_MODULES = {"vllm": "vllm", "vllm.entrypoints.cli.main": "vllm", "sglang": "sglang"}
#: Titles that engines give to the processes that they start (vLLM 0.10-0.32: VLLM_PROCESS_NAME_PREFIX).
_TITLE = re.compile(r"(VLLM::|sglang::)\w")
#: Workers that Ray starts for an engine: children of Ray, not of the server.
_RAY_TITLE = re.compile(r"ray::\w*(RayWorker|EngineCore|RayExecutor)")


class Server(NamedTuple):
    """engine: vllm, sglang, tensorrt_llm, simulated. host: as given, "" if not. port: None if it has none."""

    engine: str
    host: str
    port: int | None


def server_of(argv: list[str]) -> Server | None:
    """The server that this command line is; None if it is none."""
    program = argv[0].rpartition("/")[2] if argv else ""
    rest = argv[1:]
    if _PYTHON.fullmatch(program):
        module, program, rest = _python(rest)
        if module:
            known = _MODULES.get(module)
            if known:
                return _server(known[0], known[1], rest)
            program = _PROGRAM_MODULES.get(module, "")
        elif program.endswith(".py"):
            dotted = program.removesuffix(".py").replace("/", ".")
            for name, (engine, port) in _MODULES.items():
                if dotted == name or dotted.endswith(f".{name}"):
                    return _server(engine, port, rest)
        program = program.rpartition("/")[2]
    if program not in _PROGRAMS:
        return None
    word, engine, port = _PROGRAMS[program]
    if word and (not rest or rest[0] != word):
        return None
    return _server(engine, port, rest)


def is_title(argv: list[str]) -> bool:
    """Whether this is a process that vLLM or SGLang named as its own (``VLLM::EngineCore``)."""
    return bool(argv and _TITLE.match(argv[0]))


def is_ray_worker(argv: list[str]) -> bool:
    return bool(argv and _RAY_TITLE.match(argv[0]))


def _python(arguments: list[str]) -> tuple[str, str, list[str]]:
    """What Python runs: (module, "", its arguments) or ("", script, its arguments); both empty for ``-c``."""
    i = 0
    while i < len(arguments):
        word = arguments[i]
        if word == "-m" and i + 1 < len(arguments):
            return arguments[i + 1], "", arguments[i + 2 :]
        if word in ("-c", "-", "-m") or not word:
            break
        if not word.startswith("-"):
            return "", word, arguments[i + 1 :]
        i += 2 if word in _WITH_VALUE else 1
    return "", "", []


def _server(engine: str, default: int, arguments: list[str]) -> Server:
    # A vLLM that only lends its GPUs to a server on another node listens nowhere; neither does one on a socket file.
    if "--headless" in arguments or _option(arguments, "--uds"):
        return Server(engine, "", None)
    given = _option(arguments, "--port")
    port = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else default
    return Server(engine, _option(arguments, "--host"), port if 0 < port < 65536 else None)


def _option(arguments: list[str], name: str) -> str:
    """The last value given for an option; empty if there is none."""
    value = ""
    for i, word in enumerate(arguments):
        if word == name and i + 1 < len(arguments):
            value = arguments[i + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value
