"""The controller's side of the dead-man: starting it here or on a node, and talking to it.

It gets its program as text over its standard input, here as on a node: nothing need be installed there but python3,
and no file of ours is looked up in a folder that somebody else could write.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from chaos.fault import Refused
from chaos.place import Node

#: Seconds for a dead-man to say its first word: python's start here, ssh's too on a node.
START = 15.0
#: Bytes of one line of it at most.
_MAX_LINE = 4 * 2**20
_SENT = ("identity", "perform", "undo", "deadman")
_BOOT = (
    "import sys,types,os,json;b=b''\n"
    "while not b.endswith(b'\\n'):\n"
    " c=os.read(0,1)\n"
    " if not c: sys.exit(3)\n"
    " b+=c\n"
    "n=int(b);s=b''\n"
    "while len(s)<n:\n"
    " c=os.read(0,n-len(s))\n"
    " if not c: sys.exit(3)\n"
    " s+=c\n"
    "k=types.ModuleType('chaos');k.__path__=[];sys.modules['chaos']=k\n"
    "for name,text in json.loads(s):\n"
    " m=types.ModuleType('chaos.'+name);sys.modules['chaos.'+name]=m;setattr(k,name,m)\n"
    " exec(compile(text,name+'.py','exec'),m.__dict__)\n"
    "sys.modules['chaos.deadman'].main()\n"
)


class Agent:
    """A dead-man that was started. Raises Refused if it can't be."""

    def __init__(self, node: Node | None, request: dict[str, Any]) -> None:
        remote = node is not None and node.remote
        self.where = node.name if node is not None and remote else "this machine"
        words = ["python3", "-I", "-c", _BOOT] if remote else [sys.executable, "-I", "-S", "-c", _BOOT]
        argv = [*node.prefix, shlex.join(words)] if node is not None and remote else words
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise Refused(f"no dead-man, so no fault: {argv[0]}: {error.strerror}") from None
        folder = Path(__file__).parent
        program = json.dumps([[name, (folder / f"{name}.py").read_text()] for name in _SENT]).encode()
        self._rest = b""
        self._send(b"%d\n%s%s\n" % (len(program), program, json.dumps(request).encode()))

    def tell(self, word: str) -> None:
        """Say a word to it; one that has ended does not hear it."""
        self._send(word.encode() + b"\n")

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Its next line; None if none came within the seconds, or none will (see ``ended``)."""
        out, end = self._process.stdout, time.monotonic() + seconds
        assert out is not None
        while b"\n" not in self._rest:
            if not select.select([out], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            got = out.read1(65536)  # type: ignore[attr-defined]
            if not got:
                return None
            self._rest += got
            if len(self._rest) > _MAX_LINE:
                return {"error": f"it said more than {_MAX_LINE} bytes in a line"}
        line, _, self._rest = self._rest.partition(b"\n")
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        return {"error": f"it said {line[:200].decode('utf-8', 'replace')!r}"}

    def ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        """What it (or ssh) complained about, once it has ended."""
        # Its output may end well before it does where the machine is busy.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if not self.ended() or self._process.stderr is None:
            return "it did not answer"
        # Not until its end: a connection that ssh leaves behind for the next one (ControlPersist) holds it open.
        os.set_blocking(self._process.stderr.fileno(), False)
        said = (self._process.stderr.read(65536) or b"").decode("utf-8", "replace").strip()
        return said.splitlines()[-1] if said else f"it ended with exit {self._process.returncode}"

    def close(self, seconds: float = 10.0) -> None:
        """Close its input, which makes it undo what it holds, and wait until it has ended; then kill what hangs."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self._process.wait(5.0)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()


def ask(node: Node, request: dict[str, Any], seconds: float = START) -> dict[str, Any]:
    """One request to the program on a node (or here), one answer. Raises Refused."""
    agent = Agent(node, request)
    try:
        answer = agent.hear(seconds)
        if answer is None:
            raise Refused(f"{agent.where} can't be asked: {agent.last_words()}")
        if "error" in answer:
            raise Refused(f"{agent.where}: {answer['error']}")
        return answer
    finally:
        agent.close()
