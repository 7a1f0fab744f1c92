"""The plan's activation bytes against what autograd keeps, byte for byte.

    test_activations.py PRINT_ACTIVATIONS

Runs the same models under torch and adds up the storages of all tensors that
autograd saves, weights and tables left out.
"""
import subprocess
import sys
import unittest

import torch
import torch.nn.functional as F

PRINT_ACTIVATIONS = sys.argv.pop(1)


def weight(*shape):
    return (torch.randn(*shape) * 0.05).requires_grad_()


def split(x, heads):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def attention(q, k, v):
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(2)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def llama(vocab, dim, layers, heads, kv, ffn, seq):
    """(own tensors, function from tokens to logits)"""
    kv_dim = dim // heads * kv
    cos, sin = torch.rand(seq, dim // heads), torch.rand(seq, dim // heads)
    own = [cos, sin, weight(vocab, dim), weight(dim), weight(vocab, dim)]
    blocks = [[weight(dim), weight(dim, dim), weight(kv_dim, dim),
               weight(kv_dim, dim), weight(dim, dim), weight(dim),
               weight(ffn, dim), weight(ffn, dim), weight(dim, ffn)]
              for _ in range(layers)]

    def forward(tokens):
        x = F.embedding(tokens, own[2])
        for n1, q, k, v, o, n2, gate, up, down in blocks:
            h = F.rms_norm(x, (dim,), n1, 1e-5)
            x = x + F.linear(attention(
                rotate(split(F.linear(h, q), heads), cos, sin),
                rotate(split(F.linear(h, k), kv), cos, sin),
                split(F.linear(h, v), kv)), o)
            h = F.rms_norm(x, (dim,), n2, 1e-5)
            x = x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
        return F.linear(F.rms_norm(x, (dim,), own[3], 1e-5), own[4])

    return own + sum(blocks, []), forward


def gpt2(vocab, dim, layers, heads, kv, ffn, seq):
    own = [weight(vocab, dim), weight(seq, dim), weight(dim), weight(dim),
           weight(vocab, dim)]
    blocks = [[weight(dim), weight(dim), weight(3 * dim, dim), weight(3 * dim),
               weight(dim, dim), weight(dim), weight(dim), weight(dim),
               weight(ffn, dim), weight(ffn), weight(dim, ffn), weight(dim)]
              for _ in range(layers)]

    def forward(tokens):
        x = F.embedding(tokens, own[0]) + F.embedding(
            torch.arange(tokens.shape[1]), own[1])
        for w1, b1, qkv, qkv_b, o, o_b, w2, b2, fc, fc_b, out, out_b in blocks:
            h = F.linear(F.layer_norm(x, (dim,), w1, b1), qkv, qkv_b)
            q, k, v = (split(part, heads) for part in h.chunk(3, -1))
            x = x + F.linear(attention(q, k, v), o, o_b)
            h = F.linear(F.layer_norm(x, (dim,), w2, b2), fc, fc_b)
            x = x + F.linear(F.gelu(h, approximate="tanh"), out, out_b)
        return F.linear(F.layer_norm(x, (dim,), own[2], own[3]), own[4])

    return own + sum(blocks, []), forward


def saved_bytes(own, forward, tokens):
    ours = {tensor.untyped_storage().data_ptr() for tensor in own}
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            storages[storage.data_ptr()] = storage  # holds its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        forward(tokens)
    return sum(storage.nbytes() for storage in storages.values())


class ActivationsTest(unittest.TestCase):
    def check(self, name, build, vocab, dim, layers, heads, kv, ffn, seq,
              batch):
        sizes = (vocab, dim, layers, heads, kv, ffn, seq)
        planned = subprocess.run(
            [PRINT_ACTIVATIONS, name, *map(str, sizes), str(batch)],
            capture_output=True, text=True, check=True, timeout=60).stdout
        tokens = torch.randint(0, vocab, (batch, seq))
        self.assertEqual(int(planned),
                         saved_bytes(*build(*sizes), tokens), sizes)

    def test_llama(self):
        self.check("llama", llama, 50, 64, 2, 4, 4, 96, 16, 3)
        self.check("llama", llama, 31, 48, 3, 3, 3, 40, 8, 1)

    def test_llama_with_grouped_keys(self):
        self.check("llama", llama, 50, 64, 2, 4, 2, 96, 16, 3)
        self.check("llama", llama, 50, 64, 1, 4, 1, 96, 16, 2)

    def test_gpt2(self):
        self.check("gpt2", gpt2, 50, 64, 2, 4, 4, 256, 16, 3)
        self.check("gpt2", gpt2, 31, 48, 3, 3, 3, 192, 8, 1)


if __name__ == "__main__":
    unittest.main()
