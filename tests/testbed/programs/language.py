"""Language models of the largest model library, and adapters for them."""

from __future__ import annotations

import torch

from tests.testbed.training import Rows, array, listed, program, trained


@program("transformers", "float32")
def gpt2() -> Rows:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model, tokens = GPT2LMHeadModel(config), listed(32, 2, 12)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


@program("transformers", "float32")
def bert() -> Rows:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    model, tokens, labels = BertForSequenceClassification(config), listed(32, 2, 12), listed(3, 2)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    return trained(model, lambda: model(input_ids=tokens, attention_mask=mask, labels=labels).loss)


@program("transformers", "float32")
def llama() -> Rows:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model, tokens = LlamaForCausalLM(config), listed(32, 2, 12)
    rows = trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)
    model.eval()
    rows["generated"] = array(
        model.generate(tokens[:, :4], max_new_tokens=6, do_sample=False, pad_token_id=0)
    )
    return rows


@program("peft", "float32")
def low_rank_adapters() -> Rows:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = get_peft_model(
        GPT2LMHeadModel(config),
        LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True),
    )
    tokens = listed(32, 2, 12)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)
