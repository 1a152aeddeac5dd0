"""Which paths the router knows: names for metrics, and the engine's control endpoints, which it keeps closed."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

ROUTES = {
    b"/v1/chat/completions": "chat_completions",
    b"/v1/completions": "completions",
    b"/v1/embeddings": "embeddings",
    b"/v1/responses": "responses",
    b"/v1/models": "models",
    b"/tokenize": "tokenize",
    b"/detokenize": "detokenize",
}
#: First line of a request -> (method, url, route): the usual ones need no parsing of it.
FIRST_LINES = {b"POST %s HTTP/1.1\r\n" % path: (b"POST", path, name) for path, name in ROUTES.items()}
#: vLLM's endpoints that change or reveal the engine rather than answer a user (vllm 0.32, entrypoints).
_CONTROL = frozenset(
    (b"/metrics", b"/load", b"/server_info", b"/sleep", b"/wake_up", b"/collective_rpc", b"/abort_requests",
     b"/shutdown", b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter", b"/get_world_size", b"/openapi.json",
     b"/docs", b"/redoc", b"/weight_info", b"/weight_checker", b"/kv_event_sources", b"/release_kv_cache_memory",
     b"/finish_weight_update", b"/tokenizer_info")
)  # fmt: skip
_CONTROL_PREFIXES = (
    b"/reset_", b"/pause", b"/resume", b"/is_", b"/start_", b"/stop_", b"/scale_", b"/update_weight", b"/init_weight",
    b"/shutdown_", b"/fault_tolerance", b"/_sim", b"/docs/", b"/metrics/",
)  # fmt: skip


def origin_form(url: bytes) -> bytes:
    """The path and query of a URL that names the host too (``GET http://host/path``); ``/`` without a path."""
    _, _, rest = url.partition(b"://")
    _, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/"


def control_endpoint(path: bytes) -> bool:
    """Whether it is one, in any spelling that an engine or a proxy before it would read as one."""
    plain = unquote_to_bytes(path) if b"%" in path else path
    if b"//" in plain or b"/../" in plain or b"/./" in plain:
        return True
    plain = plain.rstrip(b"/")
    return plain in _CONTROL or plain.startswith(_CONTROL_PREFIXES)
