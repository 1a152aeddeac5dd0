"""From where on a run says more about its client than about the server: the limits, and why they are what they are.

A run over one of them in its measured phase is void. They are wide: a client within them may still add a few
milliseconds, which ``client`` in its summary tells. ``--client-limits`` moves them, for machines that are known to be
busy or for runs that must be finer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from loadtest._lib._objectives import seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """lag, delay: seconds, of the 99th percentile. cpu: share of one core. cpu_share: part of the seconds.

    lag: requests sent later than due are other arrivals than asked for. In an open loop the lag is inside the
    latencies (they count from due), so it must stay below 5 % of a usual objective of 1 s.
    delay: a timer of the loop that is late means that what arrived in that time got a later stamp. Half of a usual gap
    between tokens and more would be the client's.
    cpu: one process is one thread; above 0.9 of a core it queues. A second now and then is a burst, so a tenth of the
    seconds is allowed.
    """

    lag: float = 0.05
    delay: float = 0.05
    cpu: float = 0.9
    cpu_share: float = 0.1

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Of ``lag=50ms,delay=50ms,cpu=0.9``; what is not named keeps its value. Raises ValueError."""
        given: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name in given:
                raise ValueError(f"{name} is there twice")
            if name in ("lag", "delay"):
                given[name] = seconds(value)
            elif name == "cpu":
                given[name] = _share(value)
            else:
                raise ValueError(
                    f"{name!r} is none of lag, delay, cpu; write it like lag=50ms,delay=50ms,cpu=0.9"
                )
        return cls(**given)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1000:
        raise ValueError(f"cpu={text} is no share of a core above 0, like 0.9")
    return value
