"""Which paths the router knows: names for metrics, and the engine's control endpoints, which it keeps closed."""

from __future__ import annotations

ROUTES = {
    b"/v1/chat/completions": "chat_completions",
    b"/v1/completions": "completions",
    b"/v1/embeddings": "embeddings",
    b"/v1/responses": "responses",
    b"/v1/models": "models",
    b"/tokenize": "tokenize",
    b"/detokenize": "detokenize",
}
#: vLLM's endpoints that change or reveal the engine rather than answer a user (vllm 0.32, entrypoints).
_CONTROL = frozenset(
    (b"/metrics", b"/load", b"/server_info", b"/sleep", b"/wake_up", b"/is_sleeping", b"/collective_rpc",
     b"/abort_requests", b"/scale_elastic_ep", b"/is_scaling_elastic_ep", b"/shutdown", b"/is_paused",
     b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter", b"/start_profile", b"/stop_profile", b"/init_weight_transfer_engine",
     b"/update_weights", b"/get_world_size", b"/openapi.json", b"/docs", b"/redoc")
)  # fmt: skip
_CONTROL_PREFIXES = (b"/reset_", b"/pause", b"/resume", b"/_sim", b"/docs/", b"/metrics/")


def route_of(path: bytes) -> str:
    """The route's name for metrics: one of a closed set, since clients choose paths."""
    return ROUTES.get(path, "other")


def control_endpoint(path: bytes) -> bool:
    plain = b"/" + path.strip(b"/")
    return (
        plain in _CONTROL
        or plain.startswith(_CONTROL_PREFIXES)
        or b"%" in path
        or b"//" in path
        or b"/." in path
    )
