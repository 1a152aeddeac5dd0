"""KV cache: use, the dynamic threshold, and the alert ExaServeKVPressure.

Block utilisation ratio (BUR) = used blocks / all blocks of a replica. The dynamic threshold is headroom for the
loss of one replica: a model's replicas use more than 95 % of what would be left without the largest of them.
With one replica there is nothing to lose it to; the threshold is 95 % of its own blocks. The absolute condition
is one full replica where it already hurts: requests wait or are put back.

How blocks are counted is the source's to say; one that knows only shares counts in replicas' worth.
"""

from __future__ import annotations

from dashboards.rulefile import Alert, Group, Record
from dashboards.signals import (
    BUR,
    KV_LARGEST,
    KV_REPLICAS,
    KV_TOTAL,
    KV_USED,
    PREEMPTIONS,
    WAITING,
    Source,
)

THRESHOLD = "model:exaserve_kv_blocks_used:threshold"
MODEL_BUR = "model:exaserve_kv_block_utilisation:ratio"
ALERT = "ExaServeKVPressure"

#: Share of the blocks above which the cache counts as full.
FULL = 0.95
#: A request that ends or is put back frees its blocks, and the next one takes them: a cache that fills up again
#: within this time was full all along. Without it, `for` would begin anew at every dip.
DIP = "30s"


def group(source: Source) -> Group:
    number = source.kv_unit.partition(" ")[0]
    return Group(
        "kv",
        (
            *source.kv(),
            Record(MODEL_BUR, f"{KV_USED} / ({KV_TOTAL} > 0)"),
            Record(
                THRESHOLD,
                f"""
                {FULL} * ({KV_TOTAL} - {KV_LARGEST}) and {KV_REPLICAS} > 1
                or
                {FULL} * {KV_TOTAL}
                """,
            ),
            Alert(
                ALERT,
                f"max_over_time({KV_USED}[{DIP}]) > {THRESHOLD}",
                "warning",
                summary=f'{{{{ $labels.model }}}}: {{{{ printf "{source.kv_unit}" $value }}}} in use, headroom ends at'
                f"{{{{ with printf `{THRESHOLD}{{cluster=%q, model=%q}}` $labels.cluster $labels.model | query }}}}"
                f' {{{{ . | first | value | printf "{number}" }}}}{{{{ end }}}}',
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
                max_over_time({BUR}[{DIP}]) > {FULL}
                and on (cluster, replica, model)
                (
                  max_over_time({PREEMPTIONS}[{DIP}]) > 0
                  or
                  max_over_time({WAITING}[{DIP}]) > 0
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
