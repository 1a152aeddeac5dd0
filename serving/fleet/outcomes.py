"""What answers say about replicas, in the process that relays them: counted for the poller, acted on at once.

The poller (outlier.py) judges all processes together, but hears of them 100 ms late. A replica that refuses in
2 ms would attract thousands of requests in that time, so two things happen here with the failure itself: the
replica gets a penalty, as if the failed request were still open on it, and after a few failures it is reported for
ejection. What is called per request costs well below a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

from serving.config_router import Ejection
from serving.fleet.replica import Replica

#: Each answer moves the score this far towards 1 (failed) or 0 (good): three failures in a row pass LIMIT_ABOVE.
STEP = 0.3
#: The score that ejects is this much above router.ejection.error_rate: 0.65 by default. Failures and good answers
#: in turn come to 0.59, two failures of three to 0.68.
LIMIT_ABOVE = 0.15
#: Tokens of penalty of a failed request whose work isn't known.
LEAST_WORK = 100.0
#: Penalties halve in this time.
HALF_LIFE_SECONDS = 2.0
#: Without an answer of the poller (it is busy, or just restarted) a replica is back after this time.
PROVISIONAL_SECONDS = 2.0

Row = tuple[int, int, int, int, float]


def score_limit(error_rate: float) -> float:
    """The score at which a replica is ejected; 1 is never reached, so error_rate 1 means never by score."""
    return min(error_rate + LIMIT_ABOVE, 1.0)


class LocalOutcomes:
    """Outcomes of this process.

    report(replica, why): it should be ejected; may be called for one that is ejected already.
    on_state(replica): it may take requests now that it couldn't, or the reverse.
    provisional: the poller is another process; eject here until its verdict arrives.
    """

    def __init__(
        self,
        settings: Ejection,
        report: Callable[[Replica, str], object],
        on_state: Callable[[Replica], None],
        provisional: bool = False,
    ) -> None:
        self.report = report
        self.on_state = on_state
        self.provisional = provisional
        self._touched: list[Replica] = []
        self._penalised: set[Replica] = set()
        self._out: dict[Replica, float] = {}  # provisional ejections and their ends
        self._ticked = 0.0
        self.set_settings(settings)

    def set_settings(self, settings: Ejection) -> None:
        self.enabled = settings.enabled
        self.limit = score_limit(settings.error_rate)

    def good(self, replica: Replica, first_token_seconds: float) -> None:
        """The first byte of an answer that is no server error."""
        if not replica.ok and not replica.errors:
            self._touched.append(replica)
        replica.ok += 1
        if first_token_seconds > 0:
            replica.first_tokens += 1
            replica.log_seconds += log(first_token_seconds)
        if replica.score:
            replica.score = replica.score * (1 - STEP) if replica.score > 0.01 else 0.0
        if replica.trial:
            replica.trial -= 1
            self.on_state(replica)

    def bad(self, replica: Replica, work: float, now: float) -> None:
        """A server error, or a failure before the first byte. ``work``: tokens, 0 unknown; now: time.monotonic()."""
        if not replica.ok and not replica.errors:
            self._touched.append(replica)
        replica.errors += 1
        replica.penalty += max(work, LEAST_WORK)
        self._penalised.add(replica)
        replica.score += (1 - replica.score) * STEP
        if self.enabled and (replica.score >= self.limit or replica.trial):
            self._suspect(replica, now)

    def cut(self, replica: Replica, work: float, now: float) -> None:
        """It died after its first byte, which counted as good: that is taken back, and it counts as two."""
        self._touched.append(replica)  # twice does no harm
        replica.ok -= 1
        replica.score += (1 - replica.score) * STEP
        self.bad(replica, work, now)

    def _suspect(self, replica: Replica, now: float) -> None:
        why = "failed again in its trial" if replica.trial else "answers fail one after another"
        # Once: the next report needs new failures, whatever becomes of this one.
        replica.score = 0.0
        if self.provisional and replica.in_rotation:
            self._out[replica] = until = now + PROVISIONAL_SECONDS
            replica.eject(why, until, replica.ejections)
            self.on_state(replica)
        self.report(replica, why)

    def tick(self, now: float) -> None:
        """About every 100 ms: penalties fade, provisional ejections that nobody confirmed end."""
        passed, self._ticked = now - self._ticked, now
        if self._penalised:
            factor = 0.5 ** (passed / HALF_LIFE_SECONDS)
            for replica in list(self._penalised):
                replica.penalty *= factor
                if replica.penalty < 1.0:
                    replica.penalty = 0.0
                    self._penalised.discard(replica)
        for replica, until in list(self._out.items()):
            if replica.ejected_until != until:
                del self._out[replica]  # the poller has spoken
            elif now >= until:
                del self._out[replica]
                replica.eject("", 0.0, replica.ejections)
                self.on_state(replica)

    def take(self) -> list[Row]:
        """(index, good, failed, first tokens, sum of the logarithms of their seconds) since the last call."""
        rows = []
        for r in self._touched:
            if r.ok or r.errors:
                rows.append((r.index, r.ok, r.errors, r.first_tokens, r.log_seconds))
            r.ok = r.errors = r.first_tokens = 0
            r.log_seconds = 0.0
        self._touched.clear()
        return rows
