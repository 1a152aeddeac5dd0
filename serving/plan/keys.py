"""Which architectures and which keys of a ``config.json`` the plan knows. Reading them: ``shape.py``."""

from __future__ import annotations

from typing import Any

#: Architecture -> what it adds to llama's layers. norms: of the hidden size, a layer; gated MLPs have three matrices.
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"norms": 2},
    "MistralForCausalLM": {"norms": 2},
    "MixtralForCausalLM": {"norms": 2, "experts": "num_local_experts"},
    "Qwen2ForCausalLM": {"norms": 2, "qkv_bias": True, "window_switch": "use_sliding_window"},
    "Qwen3ForCausalLM": {"norms": 2, "qk_norm": True, "window_switch": "use_sliding_window"},
    "Qwen3MoeForCausalLM": {
        "norms": 2, "qk_norm": True, "experts": "num_experts", "window_switch": "use_sliding_window",
    },
    "Gemma3ForCausalLM": {"norms": 4, "qk_norm": True, "tied": True},
    "GptOssForCausalLM": {"norms": 2, "experts": "num_local_experts", "sinks": True},
    "DeepseekV2ForCausalLM": {"norms": 2, "experts": "n_routed_experts", "mla": True},
    "DeepseekV3ForCausalLM": {"norms": 2, "experts": "n_routed_experts", "mla": True},
    "BertModel": {"encoder": True},
}  # fmt: skip
#: Keys that stand for memory which the plan can't account for, in any architecture.
BEYOND = (
    "vision_config", "audio_config", "text_config", "thinker_config", "mamba_d_state", "ssm_state_size", "mamba_d_ssm",
    "linear_key_head_dim", "linear_num_value_heads", "linear_attn_config", "compress_ratios", "index_topk",
    "attention_chunk_size", "kv_sharing", "num_kv_shared_layers", "cross_attention_layers", "is_encoder_decoder",
    "hybrid_override_pattern", "full_attention_interval", "altup_num_inputs", "n_hash_layers",
)  # fmt: skip
#: Keys that ``shape.py`` and ``weights.py`` read.
READ = {
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings", "torch_dtype",
    "dtype", "quantization_config", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
    "sliding_window_pattern", "attention_bias", "mlp_bias", "num_local_experts", "num_experts", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq",
    "decoder_sparse_step", "mlp_only_layers", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "type_vocab_size", "topk_method",
}  # fmt: skip
#: Keys that change answers or training but no byte of memory.
WITHOUT_MEMORY = {
    "activation_function", "attention_dropout", "attention_probs_dropout_prob", "attn_logit_softcapping",
    "aux_loss_alpha", "bos_token_id", "cache_implementation", "classifier_dropout", "eos_token_id",
    "experts_per_token", "final_logit_softcapping", "gradient_checkpointing", "hidden_act", "hidden_activation",
    "hidden_dropout_prob", "initial_context_length", "initializer_range", "layer_norm_eps", "n_group",
    "norm_topk_prob", "output_router_logits", "pad_token_id", "position_embedding_type", "pretraining_tp",
    "query_pre_attn_scalar", "rms_norm_eps", "rope_interleave", "rope_local_base_freq", "rope_parameters",
    "rope_scaling", "rope_theta", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
    "scoring_func", "seq_aux", "swiglu_limit", "topk_group", "transformers_version", "use_cache", "ep_size",
    "name_or_path", "_name_or_path", "id2label", "label2id", "auto_map", "attn_bias", "num_nextn_predict_layers",
}  # fmt: skip
