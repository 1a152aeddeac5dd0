"""The process that ends a freeze when nobody else does. Run as ``python -P deadman.py RECORD``.

It reads the undo record, says ``ready``, and waits until its standard input ends (the injecting process undid
the fault, or died of whatever: the kernel closes the pipe) or the record's time is over. Then it continues
every process of the record and deletes it. Needs nothing but psutil, and imports nothing of ExaServe.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

import psutil


def heal(record: Path) -> list[int]:
    """SIGCONT to every process of the record that still is the same; then the record goes.

    Returns their pids; an empty list without a record. A record that can't be understood is left for a
    person.
    """
    try:
        processes = json.loads(record.read_bytes())["processes"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        return []
    continued = []
    for pid, created in processes:
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - created) < 0.1:
                process.resume()
                continued.append(pid)
        except psutil.Error:
            continue  # ended meanwhile; nothing to continue
    record.unlink(missing_ok=True)
    return continued


def main(record: Path) -> None:
    until = json.loads(record.read_bytes())["until"]
    print("ready", flush=True)
    while (left := until - time.time()) > 0:
        if select.select([sys.stdin], [], [], min(left, 1))[0]:
            break  # end of file; nothing is ever written to it
        if not record.exists():
            return  # healed by somebody else
    heal(record)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
