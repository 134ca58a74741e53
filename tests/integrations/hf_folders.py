"""Tiny models of `transformers` of every kind that is explained, with a tokenizer that begins and ends texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SPECIAL = ["<pad>", "<s>", "</s>", "<mask>", "<unk>"]
WORDS = [*SPECIAL, "the", "a", "cat", "dog", "sat", "ran", "on", "in", "mat", "house", "good", "bad", "<b>", "not", "very"]
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
NAMES = {0: "bad", 1: "so-so", 2: "good"}
TEXT = "the cat sat on the mat"
TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} on{% endif %}"


def word_tokenizer() -> Any:
    """One token per word; <s> before a text and </s> after it, as many models want it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 1), ("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **names)


def byte_tokenizer() -> Any:
    """Byte-level BPE, one token for a byte but for a space with the first byte of an emoji; <s> before a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: number for number, piece in enumerate([*SPECIAL, *alphabet, "Ġð"])}
    pieces = Tokenizer(models.BPE(vocab, [("Ġ", "ð")]))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    pieces.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=64, **names)


def tiny(kind: str, **changes: Any) -> Any:
    """A model with weights that are larger than a fresh model's, so that every token matters; in float64."""
    torch.manual_seed(3)
    sizes = {**SIZES, "vocab_size": len(WORDS), "max_position_embeddings": 32, **IDS, **changes}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0, **IDS}
    labels = {"id2label": NAMES, "label2id": {name: number for number, name in NAMES.items()}}
    made: dict[str, Any] = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=32, **IDS)
        ),
        "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=len(WORDS), **t5)),
        "masked": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**sizes)),
        "classes": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **labels)),
        "encoder": lambda: transformers.BertModel(transformers.BertConfig(**sizes)),
        "tags": lambda: transformers.BertForTokenClassification(transformers.BertConfig(**sizes)),
        "images": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, **labels)
        ),
    }
    model = made[kind]().eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def save(kind: str, folder: Path, tokenizer: Any = None) -> Path:
    """The model in a folder, in float32, with what reads its inputs: by default one token per word."""
    tiny(kind, **({} if tokenizer is None else {"vocab_size": len(tokenizer)})).float().save_pretrained(folder)
    if kind == "images":
        transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    elif tokenizer is not None:
        tokenizer.save_pretrained(folder)
    else:
        tokenizer = word_tokenizer()
        tokenizer.chat_template = TEMPLATE if kind == "llama" else None
        tokenizer.save_pretrained(folder)
    return folder
