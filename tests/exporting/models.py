"""A job for the worker: Hugging Face models with random weights, as folders."""

from __future__ import annotations


def make(request):
    """Write a model of class `model`, and a tokenizer that knows `words`, into `folder`."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, request["config"])(**request["values"])
    getattr(transformers, request["model"])(config).save_pretrained(request["folder"])
    if request["words"]:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(request["words"])}, unk_token="[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        marks = [("[CLS]", 2), ("[SEP]", 3)]
        inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
        named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
        transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **named).save_pretrained(request["folder"])
    return {}
