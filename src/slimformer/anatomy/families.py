"""The families known, one entry each. To add one, follow docs/guides/add-a-family.md."""

from __future__ import annotations

from dataclasses import replace

from slimformer.anatomy.family import Family, Fused, register

BERT = Family(
    name="bert",
    blocks="encoder.layer",
    attention="attention.self",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
    attention_norm="attention.output.LayerNorm",
    ffn_norm="output.LayerNorm",
    head_width="attention_head_size",
    word_embedding="embeddings.word_embeddings",
    pooler="pooler.dense",
    head_counts=("num_attention_heads",),
    head_totals=("all_head_size",),
    factorised="electra",
)
ROBERTA = replace(BERT, name="roberta", positions_after_padding=True)
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta")
ELECTRA = replace(BERT, name="electra", embeddings=("embeddings", "embeddings_project"), pooler=None)
DEBERTA_V2 = replace(
    BERT,
    name="deberta-v2",
    factorised="deberta-v2",
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    scores="disentangled",
    block_returns=(None,),
    first_block_output="encoder.conv",
)
MPNET = replace(
    BERT,
    name="mpnet",
    factorised=None,
    positions_after_padding=True,
    attention="attention.attn",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    scores="position-bias",
    heads_pinned_by="all blocks share one table of relative position biases per head",
    block_returns=(),
)
DISTILBERT = Family(
    name="distilbert",
    blocks="transformer.layer",
    attention="attention",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    up="ffn.lin1",
    down="ffn.lin2",
    attention_norm="sa_layer_norm",
    ffn_norm="output_layer_norm",
    head_width="attention_head_size",
    word_embedding="embeddings.word_embeddings",
    head_counts=("n_heads",),
    ffn_size="hidden_dim",
    factorised="electra",
)
#: The encoder of a T5, as `T5EncoderModel` has it and heads around that.
T5 = Family(
    name="t5",
    blocks="encoder.block",
    attention="layer.0.SelfAttention",
    query="layer.0.SelfAttention.q",
    key="layer.0.SelfAttention.k",
    value="layer.0.SelfAttention.v",
    output="layer.0.SelfAttention.o",
    up="layer.1.DenseReluDense.wi",
    down="layer.1.DenseReluDense.wo",
    attention_norm="layer.0.layer_norm",
    ffn_norm="layer.1.layer_norm",
    head_width="key_value_proj_dim",
    pre_norm=True,
    # The forward reads this one; `shared` is the same weight under another name.
    embeddings=("encoder.embed_tokens",),
    word_embedding="encoder.embed_tokens",
    final_norm="encoder.final_layer_norm",
    scores="position-bias",
    heads_pinned_by="all blocks share one table of relative position biases per head",
    block_returns=("position_bias", None),
    first_block_pinned_by="it holds the table of relative position biases for all blocks",
    ffn_size="d_ff",
    beyond="decoder",
    bare="AutoModelForTextEncoding",
)
# T5 1.1 and FLAN-T5: act(wi_0) * wi_1.
T5_GATED = replace(T5, gate="layer.1.DenseReluDense.wi_0", up="layer.1.DenseReluDense.wi_1")
T5 = replace(T5, gated=T5_GATED)
MODERNBERT = Family(
    name="modernbert",
    blocks="layers",
    attention="attn",
    query=Fused("attn.Wqkv", 0, 3),
    key=Fused("attn.Wqkv", 1, 3),
    value=Fused("attn.Wqkv", 2, 3),
    output="attn.Wo",
    # act(first half) * second half: the half that goes through the activation is the gate.
    gate=Fused("mlp.Wi", 0, 2),
    up=Fused("mlp.Wi", 1, 2),
    down="mlp.Wo",
    attention_norm="attn_norm",
    ffn_norm="mlp_norm",
    head_width="head_dim",
    pre_norm=True,
    word_embedding="embeddings.tok_embeddings",
    final_norm="final_norm",
    scores="rotary",
    first_block_pinned_by="it alone has no norm before its attention",
)

VIT = Family(
    name="vit",
    blocks="layers",
    attention="attention",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    output="attention.o_proj",
    up="mlp.fc1",
    down="mlp.fc2",
    attention_norm="layernorm_before",
    ffn_norm="layernorm_after",
    head_width="head_dim",
    pre_norm=True,
    patch_embedding="embeddings.patch_embeddings.projection",
    final_norm="layernorm",
    pooler="pooler.dense",
    head_counts=("num_attention_heads",),
)
DEIT = replace(VIT, name="deit")
VIT_MAE = replace(VIT, name="vit_mae", pooler=None)

GPT2 = Family(
    name="gpt2",
    blocks="h",
    attention="attn",
    query=Fused("attn.c_attn", 0, 3),
    key=Fused("attn.c_attn", 1, 3),
    value=Fused("attn.c_attn", 2, 3),
    output="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    attention_norm="ln_1",
    ffn_norm="ln_2",
    head_width="head_dim",
    pre_norm=True,
    embeddings=("wte", "wpe"),
    word_embedding="wte",
    final_norm="ln_f",
    causal=True,
    head_counts=("num_heads",),
    head_totals=("split_size",),
    ffn_size="n_inner",
)
GPT_NEOX = Family(
    name="gpt_neox",
    blocks="layers",
    attention="attention",
    query=Fused("attention.query_key_value", 0, 3, per_head=True),
    key=Fused("attention.query_key_value", 1, 3, per_head=True),
    value=Fused("attention.query_key_value", 2, 3, per_head=True),
    output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    attention_norm="input_layernorm",
    ffn_norm="post_attention_layernorm",
    head_width="head_size",
    pre_norm=True,
    parallel="use_parallel_residual",
    embeddings=("embed_in",),
    word_embedding="embed_in",
    final_norm="final_layer_norm",
    causal=True,
    scores="rotary",
)
LLAMA = Family(
    name="llama",
    blocks="layers",
    attention="self_attn",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    attention_norm="input_layernorm",
    ffn_norm="post_attention_layernorm",
    head_width="head_dim",
    pre_norm=True,
    embeddings=("embed_tokens",),
    word_embedding="embed_tokens",
    final_norm="norm",
    causal=True,
    scores="rotary",
)
QWEN2 = replace(LLAMA, name="qwen2")
QWEN3 = replace(LLAMA, name="qwen3", query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
GEMMA = replace(LLAMA, name="gemma")
#: The text model of Gemma 3n, itself made of nested feed-forward layers: its config has a width for each block.
GEMMA_3N = replace(
    QWEN3,
    name="gemma3n_text",
    ffn_norm="pre_feedforward_layernorm",
    embeddings=("embed_tokens", "embed_tokens_per_layer", "per_layer_model_projection", "altup_projections"),
    shares_keys="is_kv_shared_layer",
    heads_pinned_by="the last blocks take keys and values of earlier ones",
    blocks_pinned_by="the inputs of all blocks (per-layer embeddings) lie in one table",
    taps_pinned_by="its blocks hand on several hidden states at once (AltUp)",
)

register(
    BERT, ROBERTA, XLM_ROBERTA, ELECTRA, DEBERTA_V2, MPNET, DISTILBERT, MODERNBERT, T5,
    VIT, DEIT, VIT_MAE,
    GPT2, GPT_NEOX, LLAMA, QWEN2, QWEN3, GEMMA, GEMMA_3N,
)  # fmt: skip
