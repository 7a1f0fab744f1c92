"""Logits of Llama models by transformers: transformers_referee.py ours|make FOLDER...

    ours FOLDER LOGITS    the model in FOLDER must give LOGITS (a safetensors file
                          with `tokens` and `logits`)
    make FOLDER LOGITS    makes a model with random weights in FOLDER, and LOGITS

The packages of TESSERA_TRANSFORMERS, a folder, are imported too.
"""

import os
import sys
import warnings

sys.path.append(os.environ["TESSERA_TRANSFORMERS"])
warnings.simplefilter("ignore")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

# fp32 sums of some hundred numbers in another order.
BOUND = 2e-5


def logits_of(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits


def ours(folder, file):
    expected = load_file(file)
    model, info = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    got = logits_of(model, expected["tokens"])
    worst = (got - expected["logits"]).abs().max().item()
    assert worst <= BOUND, worst
    assert expected["logits"].abs().max() > 0.1, "logits that say nothing"


def make(folder, file):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
        initializer_range=0.3, rope_theta=500.0, rms_norm_eps=1e-3,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # ones could be exchanged
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size="20KB")
    tokens = torch.arange(12).reshape(1, 12) * 5 % 48
    save_file({"tokens": tokens, "logits": logits_of(model, tokens)}, file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"ours": ours, "make": make}[sys.argv[1]](*sys.argv[2:])
