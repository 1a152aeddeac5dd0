"""KV cache: use, the dynamic threshold, and the alert ExaServeKVPressure.

Block utilisation ratio (BUR) = used blocks / all blocks of a replica. The dynamic threshold is headroom for the
loss of one replica: a model's replicas use more than 95 % of what would be left without the largest of them.
With one replica there is nothing to lose it to; the threshold is 95 % of its own blocks. The absolute condition
is one full replica where it already hurts: requests wait or are put back.

Replicas whose engine can't be read count neither as used nor as room. A replica that two exporters read counts once.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record

BUR = "replica:exaserve_kv_block_utilisation:ratio"
USED = "model:exaserve_kv_blocks_used:sum"
TOTAL = "model:exaserve_kv_blocks:sum"
LARGEST = "model:exaserve_kv_blocks:max"
REPLICAS = "model:exaserve_kv_replicas:count"
THRESHOLD = "model:exaserve_kv_blocks_used:threshold"
MODEL_BUR = "model:exaserve_kv_block_utilisation:ratio"
ALERT = "ExaServeKVPressure"

#: Share of the blocks above which the cache counts as full.
FULL = 0.95

_BLOCKS = "max by (replica, model) (exaserve_kv_blocks and on (replica, model) exaserve_kv_blocks_used)"


def group() -> Group:
    return Group(
        "kv",
        (
            Record(
                BUR,
                "max by (replica, model) (exaserve_kv_blocks_used)"
                " / (max by (replica, model) (exaserve_kv_blocks) > 0)",
            ),
            Record(USED, "sum by (model) (max by (replica, model) (exaserve_kv_blocks_used))"),
            Record(TOTAL, f"sum by (model) ({_BLOCKS})"),
            Record(LARGEST, f"max by (model) ({_BLOCKS})"),
            Record(REPLICAS, f"count by (model) ({_BLOCKS})"),
            Record(MODEL_BUR, f"{USED} / ({TOTAL} > 0)"),
            Record(
                THRESHOLD,
                f"""
                {FULL} * ({TOTAL} - {LARGEST}) and {REPLICAS} > 1
                or
                {FULL} * {TOTAL}
                """,
            ),
            Alert(
                ALERT,
                f"{USED} > {THRESHOLD}",
                "warning",
                summary='{{ $labels.model }}: {{ printf "%.0f" $value }} KV blocks in use, headroom ends at'
                f"{{{{ with printf `{THRESHOLD}{{model=%q}}` $labels.model | query }}}}"
                ' {{ . | first | value | printf "%.0f" }}{{ end }}',
                description="""
                    With one replica less (or, where there is only one, with a little more load) requests would
                    wait or be put back. Add a replica or send less; look on the board for the replica that is
                    fullest and for a few very long requests.
                    """,
                wait="2m",
                keep_firing="1m",
                variables={"model": "{{ $labels.model }}"},
                labels={"condition": "headroom"},
            ),
            Alert(
                ALERT,
                f"""
                {BUR} > {FULL}
                and on (replica, model)
                (
                  max by (replica, model) (increase(exaserve_engine_preemptions_total[1m])) > 0
                  or
                  max by (replica, model) (exaserve_engine_requests_waiting) > 0
                )
                """,
                "warning",
                summary="{{ $labels.replica }} ({{ $labels.model }}): {{ $value | humanizePercentage }} of its KV"
                " blocks in use, and requests wait or are put back",
                description="""
                    Its users wait now. Compare the replicas on the board: one full replica among idle ones means
                    long requests or a skewed choice; all full means too much load for the fleet.
                    """,
                wait="2m",
                keep_firing="1m",
                variables={"model": "{{ $labels.model }}", "replica": "{{ $labels.replica }}"},
                labels={"condition": "replica_full"},
            ),
        ),
    )
