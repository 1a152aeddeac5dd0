"""Coroutines as plain tests, on the loop that the router runs on. Imports nothing of the router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Decorator: the coroutine as a plain function."""

    def plain() -> None:
        uvloop.run(asyncio.wait_for(test(), 120))

    plain.__name__ = test.__name__
    plain.__doc__ = test.__doc__
    return plain
