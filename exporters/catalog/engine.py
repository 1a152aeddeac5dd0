"""What an engine says of itself on its metrics page, whatever its make (exporter, engine collector).

Label ``rank``, on counters: one engine of the replica (data-parallel rank, or worker under Ray), so that the
restart of one shows as a reset of its own counter. ``sum without (rank) (rate(…[5m]))`` gives the replica.

Latency is not here: histograms are the larger part of an engine's page, and Prometheus scrapes that page anyway.
Rules map their names: ``vllm:`` and ``sglang:`` time_to_first_token_seconds, inter_token_latency_seconds,
e2e_request_latency_seconds; ``trtllm_`` time_to_first_token_seconds, time_per_output_token_seconds,
e2e_request_latency_seconds.

Golden signals in PromQL:

- traffic: ``sum without (rank) (rate(exaserve_engine_generation_tokens_total[5m]))``
- errors: ``sum without (rank, reason) (rate(exaserve_engine_requests_finished_total{reason="error"}[5m])) /
  sum without (rank, reason) (rate(exaserve_engine_requests_finished_total{reason!="abort"}[5m]))``
- saturation: ``exaserve_kv_utilisation_ratio``, ``exaserve_engine_requests_waiting``,
  ``sum without (rank) (rate(exaserve_engine_preemptions_total[5m]))``
- up but serving nothing: ``exaserve_engine_stalled_seconds > 60`` (idle: 0)
- prefix cache: ``sum without (rank, cache) (rate(exaserve_kv_prefix_hit_tokens_total[5m])) /
  sum without (rank, cache) (rate(exaserve_kv_prefix_queried_tokens_total{cache="local"}[5m]))``
- mean seconds of one KV load or store: ``sum without (rank) (rate(exaserve_kv_transfer_seconds_total[5m])) /
  sum without (rank) (rate(exaserve_kv_transfers_total[5m]))``; bandwidth: bytes over seconds
"""

from __future__ import annotations

from exporters.catalog.metric import REPLICA_LABELS, Metric

_RANK_LABELS = (*REPLICA_LABELS, "rank")
_CACHE_LABELS = (*_RANK_LABELS, "cache")
_TRANSFER_LABELS = (*_RANK_LABELS, "via", "direction")

METRICS = (
    Metric(
        "exaserve_engine_up",
        "gauge",
        "1 if the engine's metrics page could be read at this scrape, else 0.",
        ("replica",),
        source="exporter, engine collector",
    ),
    Metric(
        "exaserve_engine_info",
        "gauge",
        "Constant 1; make and version of the engine are labels.",
        ("replica", "engine", "version"),
        source="make: by the metrics page; version: /version (vLLM, TensorRT-LLM), /server_info (SGLang)",
    ),
    Metric(
        "exaserve_engine_stalled_seconds",
        "gauge",
        "For how long at least the engine has had requests, and none of its signs of life moved; 0 when idle.",
        REPLICA_LABELS,
        "seconds",
        "exporter: requests running and waiting; tokens, prefix queries, KV usage from scrape to scrape",
    ),
    Metric(
        "exaserve_engine_discovery_up",
        "gauge",
        "1 if the service discovery answered with a list; 0: the last known list is used.",
        source="exporter, engine collector",
    ),
    Metric(
        "exaserve_engine_discovery_skipped_targets",
        "gauge",
        "Targets of the service discovery's last list that can't be used.",
        ("reason",),
        source="exporter: invalid (no address, no name), duplicate (another has its name), too_many (over 8192)",
    ),
    Metric(
        "exaserve_engine_requests_running",
        "gauge",
        "Requests in the engine's batch.",
        REPLICA_LABELS,
        source="vllm:num_requests_running, sglang:num_running_reqs, trtllm_num_requests_running",
    ),
    Metric(
        "exaserve_engine_requests_waiting",
        "gauge",
        "Requests waiting in the engine.",
        REPLICA_LABELS,
        source="vllm:num_requests_waiting, sglang:num_queue_reqs and its other queues, trtllm_num_requests_waiting",
    ),
    Metric(
        "exaserve_engine_requests_waiting_by_reason",
        "gauge",
        "Requests waiting in the engine, by what they wait for.",
        (*REPLICA_LABELS, "reason"),
        source="vLLM: capacity, deferred; SGLang: capacity, grammar, kv_bootstrap, kv_prealloc, kv_transfer",
    ),
    Metric(
        "exaserve_engine_requests_swapped",
        "gauge",
        "Requests whose KV blocks are swapped out to host memory.",
        REPLICA_LABELS,
        source="vllm:num_requests_swapped (V0 engine only)",
    ),
    Metric(
        "exaserve_engine_preemptions_total",
        "counter",
        "Requests put back because the KV cache ran out.",
        _RANK_LABELS,
        source="vllm:num_preemptions_total, sglang:num_retracted_requests_total",
    ),
    Metric(
        "exaserve_engine_prompt_tokens_total",
        "counter",
        "Prompt tokens processed, cached ones too.",
        _RANK_LABELS,
        source="vllm:, sglang: and trtllm_ prompt_tokens_total (the last two count when a request ends)",
    ),
    Metric(
        "exaserve_engine_generation_tokens_total",
        "counter",
        "Tokens generated.",
        _RANK_LABELS,
        source="vllm:, sglang: and trtllm_ generation_tokens_total (the last two count when a request ends)",
    ),
    Metric(
        "exaserve_engine_requests_finished_total",
        "counter",
        "Requests that ended, by how; errors and aborts too.",
        (*_RANK_LABELS, "reason"),
        source="vllm:request_success_total: stop, length, abort, error, repetition; SGLang: finished, abort;"
        " TensorRT-LLM: stop, length, abort, timeout, and error for an HTTP 5xx",
    ),
    Metric(
        "exaserve_engine_admission_rejections_total",
        "counter",
        "Requests that the engine's server turned away, by why.",
        (*_RANK_LABELS, "reason"),
        source="vllm:admission_rejections_total; trtllm_request_error_total: http_429, http_503",
    ),
    Metric(
        "exaserve_engine_sleep_level",
        "gauge",
        "0 awake, 1 weights offloaded, 2 weights and KV cache discarded: the deepest of the replica's engines.",
        REPLICA_LABELS,
        source="vllm:engine_sleep_state",
    ),
    Metric(
        "exaserve_kv_blocks",
        "gauge",
        "KV cache blocks that the replica's requests can have in all.",
        REPLICA_LABELS,
        source="vLLM V1: num_gpu_blocks of vllm:cache_config_info less the null block, V0: all of them (a label in"
        " the engine, so PromQL can't compute with it); sglang:num_pages; trtllm_kv_cache_max_blocks",
    ),
    Metric(
        "exaserve_kv_blocks_used",
        "gauge",
        "KV cache blocks in use.",
        REPLICA_LABELS,
        source="vllm:kv_cache_usage_perc x blocks; sglang:kv_used_tokens / page_size; trtllm_kv_cache_used_blocks",
    ),
    Metric(
        "exaserve_kv_block_size_tokens",
        "gauge",
        "Tokens that one KV cache block holds.",
        REPLICA_LABELS,
        source="vllm:cache_config_info, label block_size; sglang:page_size; trtllm_kv_cache_tokens_per_block",
    ),
    Metric(
        "exaserve_kv_utilisation_ratio",
        "gauge",
        "Share of the KV cache in use, 0-1, as the engine says; there too where its blocks aren't known.",
        REPLICA_LABELS,
        source="vllm:kv_cache_usage_perc, sglang:token_usage, trtllm_kv_cache_utilization; mean over the ranks",
    ),
    Metric(
        "exaserve_kv_prefix_queried_tokens_total",
        "counter",
        "Prompt tokens looked up in the prefix cache: the engine's own, or an external one (those that it lacked).",
        _CACHE_LABELS,
        source="vllm:prefix_cache_queries_total, vllm:external_prefix_cache_queries_total; elsewhere prompt tokens",
    ),
    Metric(
        "exaserve_kv_prefix_hit_tokens_total",
        "counter",
        "Prompt tokens found in the prefix cache: the engine's own (local), or host memory and beyond (external).",
        _CACHE_LABELS,
        source="vllm:prefix_cache_hits_total, vllm:external_prefix_cache_hits_total, sglang:cached_tokens_total,"
        " trtllm_prompt_cached_tokens_total",
    ),
    Metric(
        "exaserve_kv_transfers_total",
        "counter",
        "KV copies into the GPU (load) and out of it (store).",
        _TRANSFER_LABELS,
        source="vllm:kv_offload_load_size_count (store likewise), vllm:nixl_xfer_time_seconds_count;"
        " sglang:load_back_duration_seconds_count, sglang:hicache_backup_duration_seconds_count,"
        " sglang:kv_transfer_latency_ms_count",
    ),
    Metric(
        "exaserve_kv_transfer_bytes_total",
        "counter",
        "Bytes of KV cache copied into the GPU (load) and out of it (store).",
        _TRANSFER_LABELS,
        "bytes",
        "vllm:kv_offload_load_bytes_total, before 0.2x kv_offload_total_bytes_total; vllm:nixl_bytes_transferred;"
        " sglang:load_back_bytes_total, hicache_backup_bytes_total, kv_transfer_total_mb;"
        " trtllm_kv_cache_onboard_bytes_total, _offload_bytes_total",
    ),
    Metric(
        "exaserve_kv_transfer_seconds_total",
        "counter",
        "Copy time of KV cache into the GPU and out of it, added up over the workers, without queueing.",
        _TRANSFER_LABELS,
        "seconds",
        "vllm:kv_offload_load_time_total, before 0.2x kv_offload_total_time_total; vllm:nixl_xfer_time_seconds;"
        " sglang:load_back_duration_seconds, hicache_backup_duration_seconds, kv_transfer_latency_ms",
    ),
    Metric(
        "exaserve_kv_transfer_failures_total",
        "counter",
        "KV copies that failed: no room for a store, a transfer that broke.",
        _TRANSFER_LABELS,
        source="vllm:kv_offload_allocation_failure_total, vllm:nixl_num_failed_transfers_total;"
        " sglang:num_transfer_failed_reqs_total",
    ),
)
