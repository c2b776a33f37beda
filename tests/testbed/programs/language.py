"""Models of the largest library of them: language, images, speech; and adapters."""

from __future__ import annotations

import torch

from tests.testbed.training import Rows, array, filled, listed, program, trained


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


@program("transformers", "float32")
def mixture_of_experts() -> Rows:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        sliding_window=4,
    )
    model, tokens = MixtralForCausalLM(config), listed(32, 2, 12)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


@program("transformers", "float32")
def state_space() -> Rows:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, intermediate_size=32, state_size=4
    )
    model, tokens = MambaForCausalLM(config), listed(32, 2, 12)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


@program("transformers", "float32")
def translation() -> Rows:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=32,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model, tokens = T5ForConditionalGeneration(config), listed(32, 2, 12)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


@program("transformers", "float32")
def images_and_texts() -> Rows:
    from transformers import CLIPConfig, CLIPModel

    tower = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = CLIPConfig(
        text_config={**tower, "vocab_size": 32, "max_position_embeddings": 16},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    model, tokens, images = CLIPModel(config), listed(32, 2, 12), filled(2, 3, 32, 32)
    return trained(
        model, lambda: model(input_ids=tokens, pixel_values=images, return_loss=True).loss
    )


@program("transformers", "float32")
def speech() -> Rows:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=32,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=8,
        max_target_positions=16,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model, sounds = WhisperForConditionalGeneration(config), filled(2, 8, 16)
    tokens = listed(32, 2, 12)
    return trained(model, lambda: model(input_features=sounds, labels=tokens).loss)


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
