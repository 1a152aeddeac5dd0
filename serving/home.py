"""Where ExaServe keeps its state, and how a file is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def home() -> Path:
    """``$EXASERVE_HOME``, or ``~/.exaserve``. Not created here."""
    return Path(os.environ.get("EXASERVE_HOME") or Path.home() / ".exaserve").expanduser().absolute()


def write_whole(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the whole new one.

    Temporary file beside it, fsync, rename. Raises OSError; the temporary file is gone then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(raw)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
