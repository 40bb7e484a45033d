#!/usr/bin/env python3
"""Measures whether the bits of a row of LibTorch's products (cuBLAS, cuBLASLt) depend on the number of rows, for the linear
layers of the models of random_model.py, multiplied as the engine does in `fast` (bf16 in, fp32 out).

    cublas_rows.py [--shapes 0.5b,1.5b,7b] [--rows 1,2,...] [--device cuda|cpu]

Prints a Markdown table with, for each product, the numbers of rows with which every row has the same bits as alone, and
those with which some row differs. Numerics `invariant` does not depend on the result, because it has its own kernels.
"""
import argparse

import torch
from random_model import SHAPES

ROWS = "2,4,8,16,24,32,48,64,128,256,512,2048"


def products(shape):
    """(name, inputs, outputs) of each linear layer."""
    hidden, mlp = shape["hidden_size"], shape["intermediate_size"]
    kv = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    return [("qkv", hidden, hidden + 2 * kv), ("o", hidden, hidden), ("gate_up", hidden, 2 * mlp),
            ("down", mlp, hidden), ("head", hidden, shape["vocab_size"])]


def multiply(x, weight):
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return torch.mm(x.float(), weight.float().t())


def rows_apart(inputs, outputs, rows, device):
    """How many of `rows` rows have other bits than when multiplied alone."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(rows, inputs, generator=source).to(device, torch.bfloat16)
    weight = torch.randn(outputs, inputs, generator=source).to(device, torch.bfloat16)
    together = multiply(x, weight)
    looked_at = range(0, rows, max(1, rows // 16))
    return sum(not torch.equal(multiply(x[i:i + 1], weight)[0], together[i]) for i in looked_at)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="0.5b,1.5b,7b")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--device", default="cuda")
    flags = parser.parse_args()
    print("| product | inputs x outputs | same bits as alone | other bits |")
    print("|---|---|---|---|")
    for shape in flags.shapes.split(","):
        for name, inputs, outputs in products(SHAPES[shape]):
            apart = {n: rows_apart(inputs, outputs, n, flags.device)
                     for n in map(int, flags.rows.split(","))}
            same = " ".join(str(n) for n, count in apart.items() if count == 0)
            other = " ".join(str(n) for n, count in apart.items() if count > 0)
            print(f"| {shape} {name} | {inputs} x {outputs} | {same or '-'} | {other or '-'} |", flush=True)


if __name__ == "__main__":
    main()
