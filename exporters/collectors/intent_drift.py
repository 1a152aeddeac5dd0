"""Intent drift collector: the router's counts of intents over a window, against a saved reference.

The router's page is read at each scrape. What it counted is kept for two windows in a bounded ring, so the
counts of "now minus one window" are at hand; counters that fell (a router that restarted) go on from there.
The ring lives in memory: an exporter that restarts starts anew and gives no verdict until its second window
has 200 requests. The mathematics is ``_drift.py``, the reference's file ``_reference.py``.

Without a reference, samples and shares are exported and nothing is compared. A router without traffic has 0
samples and no share; below 200 samples, or with a reference of less than 2,000, there is no distance and no
verdict."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable

from exporters.collectors import _drift
from exporters.collectors._fetch import Ask, Fetcher
from exporters.collectors._page import unescaped
from exporters.collectors._reference import MAX_INTENTS, Reference, ReferenceFile
from exporters.registry import NoData, Sample, register
from exporters.settings import Settings, without_password

#: A router's page has some 100 KB; one with every series that the router allows stays below this.
MAX_BODY_BYTES = 32 * 2**20
#: Counts that are kept for a window; the ring holds two windows.
STEPS = 60

#: Requests that one series may have counted; a larger number is none.
MAX_COUNT = 1e15

_COUNTER = b"exaserve_router_classifications_total"
_LINE = re.compile(rb"^" + _COUNTER + rb"\{([^\n]*)\}[ \t]+(\S+)", re.M)
_INTENT = re.compile(rb'(?:^|,)\s*intent="((?:[^"\\]|\\.)*)"')

_Series = dict[bytes, float]


def counters_of(page: bytes) -> _Series:
    """The classification counters on a router's page: label text -> value. Empty before the first request.

    Raises ValueError if this is no router's page.
    """
    if _COUNTER not in page:
        raise ValueError(f"no {_COUNTER.decode()} on the page: not an ExaServe router's metrics")
    found: _Series = {}
    for labels, text in _LINE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value < MAX_COUNT:
            found[labels] = value
    return found


def _intent_of(labels: bytes) -> str:
    found = _INTENT.search(labels)
    return unescaped(found[1]) if found else ""


class Window:
    """Counts by intent over the last ``seconds`` and over as long before that. Times are monotonic."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._series: _Series | None = None
        self._counted: dict[str, float] = {}
        #: (time, counted until then), oldest first.
        self._ring: deque[tuple[float, dict[str, float]]] = deque(maxlen=2 * STEPS + 2)

    def take(self, now: float, series: _Series) -> None:
        """The counters as they are now. The first ones are where counting begins.

        Raises ValueError if there are more intents than a model can have.
        """
        intents = {labels: _intent_of(labels) for labels in series}
        if len(set(intents.values())) > MAX_INTENTS:
            raise ValueError(f"more than {MAX_INTENTS} intents on the router's page")
        before = self._series
        counted = dict(self._counted)
        if before is not None:
            for labels, value in series.items():
                intent = intents[labels]
                was = before.get(labels, 0.0)
                # Smaller than before: the router restarted, and counted this much since.
                grown = value - was if value >= was else value
                if intent:
                    counted[intent] = counted.get(intent, 0.0) + grown
        if len(counted) > 4 * MAX_INTENTS:
            # Models came and went; the intents of the old ones are ballast. Counting begins anew.
            counted = {}
            self._ring.clear()
        self._series, self._counted = series, counted
        if not self._ring or now - self._ring[-1][0] >= self._seconds / STEPS:
            self._ring.append((now, counted))

    def counts(self, now: float) -> tuple[dict[str, float], float, dict[str, float]]:
        """(counts of the window that ends now, seconds that it covers, counts of the window before it)."""
        if not self._ring:
            return {}, 0.0, {}
        at, start = self._nearest(now - self._seconds)
        _, earlier = self._nearest(at - self._seconds)
        return _difference(self._counted, start), now - at, _difference(start, earlier)

    def _nearest(self, moment: float) -> tuple[float, dict[str, float]]:
        """After a pause in the scrapes the nearest one may be later, never much earlier."""
        return min(self._ring, key=lambda entry: abs(entry[0] - moment))


def _difference(later: dict[str, float], earlier: dict[str, float]) -> dict[str, float]:
    found = {intent: n - earlier.get(intent, 0.0) for intent, n in later.items()}
    return {intent: n for intent, n in found.items() if n > 0}


class IntentDriftCollector:
    """Reads ``settings.router`` and, if it is named, ``settings.intent_reference``."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        # The admin API's address will do; its page is where every router has it.
        router = settings.router
        self._url = router if router is None or router.endswith("/metrics") else f"{router}/metrics"
        self._timeout = settings.timeout
        self._clock = clock
        self._reference = (
            ReferenceFile(settings.intent_reference) if settings.intent_reference is not None else None
        )
        self._window = Window(settings.intent_window)
        self._fetcher = Fetcher()

    def collect(self, deadline: float) -> list[Sample]:
        if self._url is None:
            raise NoData
        page = self._page(self._url, deadline)
        now = self._clock()
        # Taken before the reference is read: a file that is damaged costs no counts.
        self._window.take(now, counters_of(page))
        counts, seconds, before = self._window.counts(now)
        samples = [
            Sample("exaserve_intent_drift_window_samples", (), sum(counts.values())),
            Sample("exaserve_intent_drift_window_seconds", (), seconds),
        ]
        reference = self._reference.read() if self._reference is not None else None
        shares = _drift.shares(counts)
        if reference is not None and shares:
            # An intent that the reference has and the window lacks has the share 0, and that is known.
            shares = dict.fromkeys(reference.counts, 0.0) | shares
        samples += [
            Sample("exaserve_intent_drift_share_ratio", (intent,), share) for intent, share in shares.items()
        ]
        return samples + (compared(counts, before, reference) if reference is not None else [])

    def _page(self, url: str, deadline: float) -> bytes:
        answers: list[bytes | Exception] = []
        seconds = max(0.05, min(self._timeout, deadline - time.monotonic()))
        self._fetcher.run([Ask(url, seconds, MAX_BODY_BYTES, answers.append)], time.monotonic() + seconds)
        answer = answers[0]
        if isinstance(answer, bytes):
            return answer
        why = f"no answer in {seconds:.1f} s" if isinstance(answer, TimeoutError) else answer
        raise ValueError(f"{without_password(url)}: {why}")


def compared(counts: dict[str, float], before: dict[str, float], reference: Reference) -> list[Sample]:
    """The reference's samples, and how far the window is from it where there are enough of both.

    counts, before: requests by intent in this window and in the one before it.
    """
    normal = reference.counts
    size = sum(normal.values())
    samples = [
        Sample("exaserve_intent_drift_reference_samples", (), size),
        Sample("exaserve_intent_drift_reference_timestamp_seconds", (), reference.until),
        *(
            Sample("exaserve_intent_drift_reference_share_ratio", (intent,), share)
            for intent, share in _drift.shares(normal).items()
        ),
    ]
    if size < _drift.LEAST_REFERENCE or sum(counts.values()) < _drift.LEAST_WINDOW:
        return samples
    psi, threshold = _drift.psi(counts, normal), _drift.psi_threshold(counts, normal)
    samples += [
        Sample("exaserve_intent_drift_distance_ratio", (), _drift.jensen_shannon(counts, normal)),
        Sample("exaserve_intent_drift_psi", (), psi),
        Sample("exaserve_intent_drift_psi_threshold", (), threshold),
    ]
    if psi <= threshold:
        samples.append(Sample("exaserve_intent_drift_shifted", (), 0))
    elif sum(before.values()) >= _drift.LEAST_WINDOW:
        both = _drift.psi(before, normal) > _drift.psi_threshold(before, normal)
        samples.append(Sample("exaserve_intent_drift_shifted", (), float(both)))
    return samples


register("intent_drift", IntentDriftCollector)
