"""How finely locust keeps response times."""

from __future__ import annotations


def keep_three_digits() -> None:
    """Keep response times (ms) to three significant digits and to 0.1 ms, in every row of this run.

    locust keeps two: 109 ms becomes 110 and 1,049 ms becomes 1,000, so that a change of 5 % can vanish, and
    whole milliseconds, which is 5 % of a gap of 20 ms. Its table still prints whole numbers; the response
    times in its JSON have the digits. At most some 2,800 different values up to 1,000 s.
    """
    import locust.stats  # here: importing it replaces the sockets of the whole process

    locust.stats.bucket_response_time = bucket  # type: ignore[assignment]  # its keys need not be whole


def bucket(milliseconds: float) -> float:
    if milliseconds < 100:
        return round(milliseconds, 1)
    if milliseconds < 1000:
        return round(milliseconds)
    return round(milliseconds, -1) if milliseconds < 10_000 else round(milliseconds, -2)
