"""Replicas that stand out from their fleet: thresholds that follow it, ExaServeReplicaSlow and ExaServeKVTransferSlow.

An outlier is further above the median of its model's replicas than K times their median absolute deviation (MAD),
and than a floor: in an even fleet the deviation is almost 0, and every hair would stand out. Both follow a fleet
that grows, shrinks, or becomes slower as a whole; below LEAST replicas there is nothing to compare with, and no
threshold. A mean over very few requests says nothing, so such a replica neither counts nor alerts.

A fleet that is slow as a whole is for ``bands.py`` (against its own day) and ``slo.py`` (against what was
promised); the headroom for the loss of a replica is in ``kv.py``. KV transfers have an absolute ceiling as well,
which also holds where replicas are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dashboards.rulefile import Alert, Group, Record
from dashboards.signals import FIRST_TOKENS, LONG, REPLICA_INTER_TOKEN, REPLICA_TTFT, WAITING

#: 5 MADs are 3.4 standard deviations of a normal distribution.
K = 5
#: Replicas below which nobody is an outlier.
LEAST = 4
#: Requests, or transfers, in 5 minutes below which a replica's mean is not looked at.
ENOUGH = 10
#: Seconds of a mean KV copy that are too long however the others do: 5 GiB (16,000 tokens of a 70B model) take
#: 0.2 s over PCIe 4.0 x16.
KV_TRANSFER_CEILING = 0.5

#: By cluster, model, replica, via, direction: seconds of one KV copy (KV swap latency, KCSL), and copies a second.
KV_TRANSFER = f"replica:exaserve_kv_transfer_seconds:mean{LONG}"
KV_TRANSFERS = f"replica:exaserve_kv_transfers:rate{LONG}"

SLOW, KV_SLOW = "ExaServeReplicaSlow", "ExaServeKVTransferSlow"


@dataclass(frozen=True, slots=True)
class Signal:
    """One quantity that replicas are compared by.

    series: by replica. quantity, window: parts of the names of what is recorded. count: series that says over how
    many a second it is a mean; "" where it is no mean. floor: least distance from the median. by: whose replicas
    are compared.
    """

    series: str
    quantity: str
    window: str
    count: str
    floor: float
    by: str = "cluster, model"

    def judged(self) -> str:
        """The replicas that count."""
        if not self.count:
            return self.series
        return f"({self.series} and {self.count} * 300 >= {ENOUGH})"


SIGNALS: Mapping[str, Signal] = {
    "ttft": Signal(REPLICA_TTFT, "ttft_seconds", LONG, FIRST_TOKENS, 0.25),
    "inter_token": Signal(REPLICA_INTER_TOKEN, "inter_token_seconds", LONG, FIRST_TOKENS, 0.02),
    "waiting": Signal(WAITING, "requests_waiting", "", "", 8),
    "kv_transfer": Signal(
        KV_TRANSFER, "kv_transfer_seconds", LONG, KV_TRANSFERS, 0.02, "cluster, model, via, direction"
    ),
}


def median(signal: str) -> str:
    """Recorded median over the replicas of a model. signal: of SIGNALS."""
    return f"model:exaserve_{SIGNALS[signal].quantity}:median{SIGNALS[signal].window}"


def mad(signal: str) -> str:
    """Recorded median absolute deviation from it."""
    return f"model:exaserve_{SIGNALS[signal].quantity}:mad{SIGNALS[signal].window}"


def outlier(signal: str) -> str:
    """Recorded value above which a replica stands out; absent below LEAST replicas."""
    return f"model:exaserve_{SIGNALS[signal].quantity}:outlier_threshold"


#: As ``outlier("kv_transfer")``, at most KV_TRANSFER_CEILING, and that alone where replicas are few.
KV_THRESHOLD = "model:exaserve_kv_transfer_seconds:threshold"


def group() -> Group:
    rules: list[Record | Alert] = list(_kv_transfers())
    for name in SIGNALS:
        rules += _thresholds(name)
    few = SIGNALS["kv_transfer"]
    rules += [
        Record(
            KV_THRESHOLD,
            f"""
            {outlier("kv_transfer")} < {KV_TRANSFER_CEILING}
            or
            group by ({few.by}) ({few.series}) * {KV_TRANSFER_CEILING}
            """,
        ),
        _slow("ttft", "first tokens take {{ $value | humanizeDuration }} on average", "humanizeDuration"),
        _slow(
            "inter_token", "{{ $value | humanizeDuration }} between two tokens on average", "humanizeDuration"
        ),
        _slow("waiting", "{{ $value | humanize }} requests wait in it", "humanize"),
        _kv_slow(),
    ]
    return Group("thresholds", tuple(rules))


def _kv_transfers() -> tuple[Record, ...]:
    """From the exporter, for every make of engine; a replica that two exporters read counts once."""
    by = "cluster, model, replica, via, direction"

    def rate(metric: str) -> str:
        return f"sum by ({by}) (max by ({by}, rank) (rate({metric}[{LONG}])))"

    seconds, copies = rate("exaserve_kv_transfer_seconds_total"), rate("exaserve_kv_transfers_total")
    return Record(KV_TRANSFERS, copies), Record(KV_TRANSFER, f"{seconds} / ({KV_TRANSFERS} > 0)")


def _thresholds(name: str) -> tuple[Record, ...]:
    signal = SIGNALS[name]
    by, series = signal.by, signal.judged()
    floor = f"clamp_min(0.5 * {median(name)}, {signal.floor})"
    return (
        Record(median(name), f"quantile by ({by}) (0.5, {series})"),
        Record(
            mad(name), f"quantile by ({by}) (0.5, abs({series} - on ({by}) group_left () {median(name)}))"
        ),
        Record(
            outlier(name),
            f"""
            {median(name)} + ({K} * {mad(name)} > {floor} or {floor})
            and
            count by ({by}) ({series}) >= {LEAST}
            """,
        ),
    )


def _asked(series: str, labels: tuple[str, ...], as_: str) -> str:
    """Template: the present value of a recorded series with these labels of the alert."""
    matchers = ", ".join(f"{label}=%q" for label in labels)
    values = " ".join(f"$labels.{label}" for label in labels)
    return f"{{{{ with printf `{series}{{{matchers}}}` {values} | query }}}}{{{{ . | first | value | {as_} }}}}{{{{ end }}}}"


def _slow(name: str, what: str, as_: str) -> Alert:
    signal = SIGNALS[name]
    return Alert(
        SLOW,
        f"{signal.judged()} > on ({signal.by}) group_left () {outlier(name)}",
        "warning",
        summary=f"{{{{ $labels.replica }}}} ({{{{ $labels.model }}}}): {what};"
        f" its fleet's median is {_asked(median(name), ('cluster', 'model'), as_)}",
        description="""
            It does worse than the other replicas of its model at the same time, so load alone is not the cause.
            Compare it on the Replica board: GPU clocks and temperature, KV cache, its node's memory and network, and
            whether it gets other requests than the others. If it stays, drain it and restart it.
            """,
        wait="3m",
        keep_firing="5m",
        board="replica",
        variables={"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"},
        labels={"signal": name},
    )


def _kv_slow() -> Alert:
    signal = SIGNALS["kv_transfer"]
    labels = ("cluster", "model", "via", "direction")
    return Alert(
        KV_SLOW,
        f"{signal.judged()} > on ({signal.by}) group_left () {KV_THRESHOLD}",
        "warning",
        summary="{{ $labels.replica }} ({{ $labels.model }}): one KV {{ $labels.direction }} over"
        " {{ $labels.via }} takes {{ $value | humanizeDuration }} on average, the limit is"
        f" {_asked(KV_THRESHOLD, labels, 'humanizeDuration')}",
        description="""
            Requests wait for their KV blocks. Where one replica of many is slow, look at its node: PCIe width, NUMA
            placement, memory bandwidth, and for copies between nodes the fabric. Where all are slow, the copies have
            become larger or the link is full.
            """,
        wait="5m",
        keep_firing="5m",
        board="replica",
        variables={"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"},
    )
