"""How many second attempts there may be: a share of the requests, so that retries can't become the load."""

from __future__ import annotations

#: Retries that may happen on top of the share, so that a quiet router retries as well; refilled by requests only.
RESERVE = 10.0

#: Failures of a replica that is gone, or that never took the request: it is moved, not asked twice, and all that a
#: replica had open is moved at once. So they take nothing from the budget; ``max_attempts`` bounds them.
MOVED = frozenset(("refused", "frozen", "down", "removed"))


class RetryBudget:
    """A bucket that each request fills by ``ratio`` and each retry empties by one. Plain arithmetic, no clock."""

    __slots__ = ("left", "ratio")

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.left = RESERVE if ratio > 0 else 0.0

    def request(self) -> None:
        """A request came in."""
        if self.left < RESERVE:
            self.left += self.ratio

    def take(self) -> bool:
        """Whether one more retry may be sent; it is counted then."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def give_back(self) -> None:
        """It was not sent after all."""
        self.left = min(self.left + 1.0, RESERVE)
