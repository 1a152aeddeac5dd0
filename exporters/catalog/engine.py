"""What an engine says of itself on its metrics page, whatever its make (exporter, engine collector)."""

from __future__ import annotations

from exporters.catalog.metric import REPLICA_LABELS, Metric

METRICS = (
    Metric(
        "exaserve_engine_up",
        "gauge",
        "1 if the engine's metrics page could be read at this scrape, else 0.",
        ("replica",),
        source="exporter, engine collector",
    ),
    Metric(
        "exaserve_engine_requests_running",
        "gauge",
        "Requests in the engine's batch.",
        REPLICA_LABELS,
        source="vllm:num_requests_running",
    ),
    Metric(
        "exaserve_engine_requests_waiting",
        "gauge",
        "Requests waiting in the engine.",
        REPLICA_LABELS,
        source="vllm:num_requests_waiting",
    ),
    Metric(
        "exaserve_engine_preemptions_total",
        "counter",
        "Requests put back because the KV cache ran out.",
        REPLICA_LABELS,
        source="vllm:num_preemptions_total",
    ),
    Metric(
        "exaserve_kv_blocks",
        "gauge",
        "KV cache blocks that the replica has in all.",
        REPLICA_LABELS,
        source="vllm:cache_config_info, label num_gpu_blocks (a label in the engine, so PromQL can't compute with it)",
    ),
    Metric(
        "exaserve_kv_blocks_used",
        "gauge",
        "KV cache blocks in use.",
        REPLICA_LABELS,
        source="vllm:kv_cache_usage_perc x blocks",
    ),
    Metric(
        "exaserve_kv_block_size_tokens",
        "gauge",
        "Tokens that one KV cache block holds.",
        REPLICA_LABELS,
        source="vllm:cache_config_info, label block_size",
    ),
)
