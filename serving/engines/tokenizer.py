"""The byte-level BPE tokeniser of a GGUF file, as tokenizer.json and tokenizer_config.json.

Only for files whose pre-tokeniser is ``smollm``: digits one by one, then GPT-2's byte level. Weights and
config.json are in ``gguf.py``.
"""

from __future__ import annotations

from typing import Any

from .gguf import GgufFile

# Values of tokenizer.ggml.token_type in the GGUF specification.
_CONTROL = 3
_USER_DEFINED = 4


def _added_tokens(source: GgufFile) -> list[dict[str, Any]]:
    tokens = source.need("tokenizer.ggml.tokens")
    types = source.need("tokenizer.ggml.token_type")
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def tokenizer(source: GgufFile) -> dict[str, Any]:
    """tokenizer.json. Raises ValueError if the file's tokeniser is of another kind."""
    kind = (source.need("tokenizer.ggml.model"), source.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the GGUF file's tokeniser is {kind}; only ('gpt2', 'smollm') can be converted")
    tokens = source.need("tokenizer.ggml.tokens")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(source),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            # The two halves hold no space: byte level writes a space as Ġ.
            "merges": [merge.split(" ") for merge in source.need("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(source: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json with the file's special tokens and chat template."""
    tokens = source.need("tokenizer.ggml.tokens")

    def token(key: str) -> str | None:
        index = source.get(f"tokenizer.ggml.{key}_token_id")
        return None if index is None else tokens[int(index)]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in _added_tokens(source)
        },
        "add_prefix_space": False,
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "chat_template": source.need("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(source.need("llama.context_length")),
    }
