"""How locust's own table keeps response times."""

from __future__ import annotations

from collections import defaultdict

from loadtest._lib._stats import bucket, log_all


class Row:
    """What ``log_all`` needs of locust's StatsEntry."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_reqs_per_sec: defaultdict[int, int] = defaultdict(int)
        self.total_response_time = self.max_response_time = 0.0
        self.min_response_time: float | None = None
        self.response_times: defaultdict[float, int] = defaultdict(int)

    def log(self, milliseconds: float, length: int) -> None:
        assert length == 0
        self.num_requests += 1
        self.total_response_time += milliseconds
        known = self.min_response_time
        self.min_response_time = milliseconds if known is None else min(known, milliseconds)
        self.max_response_time = max(self.max_response_time, milliseconds)
        self.response_times[bucket(milliseconds)] += 1


def test_response_times_keep_three_digits() -> None:
    given = [20.26, 109.4, 1049.0, 23_456.0, 0.04]
    assert [bucket(ms) for ms in given] == [20.3, 109, 1050, 23_500, 0.0]


def test_many_at_once_are_kept_as_one_by_one() -> None:
    values = [20.0, 3.2, 450.0, 20.04]
    together, single = Row(), Row()
    log_all(together, values)
    log_all(together, [])
    for value in values:
        single.log(value, 0)
    assert vars(together) | {"num_reqs_per_sec": None} == vars(single) | {"num_reqs_per_sec": None}
    assert sum(together.num_reqs_per_sec.values()) == 3, "the first goes through the row's own log"
