#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the MLP block of a LLaMA with 2:4 weights, dense and after fistapruner.torch.to_semi_structured().

    semi_structured_block.py [--hidden 4096] [--inner 11008] [--tokens 4096 16384] [--dtype bfloat16]

Random weights of LLaMA-2-7B's shape, of which the two largest of each four are kept. Needs a GPU of compute
capability 8.0 or later. "change" is the largest difference between the outputs, relative to the largest output.
"""
import argparse

import torch
from torch import nn

from fistapruner._semi_structured import milliseconds
from fistapruner.torch import to_semi_structured


class Block(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def make_2_of_4(weight):
    fours = weight.view(-1, 4)
    fours.scatter_(1, fours.abs().argsort(1)[:, :2], 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=11008)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {options.dtype}")
    print("| tokens | dense ms | sparse ms | faster | converted | change |\n| --- | --- | --- | --- | --- | --- |")
    for tokens in options.tokens:
        torch.manual_seed(0)
        block = Block(options.hidden, options.inner).to("cuda", dtype)
        with torch.no_grad():
            for linear in block.children():
                make_2_of_4(linear.weight)
            x = torch.randn(tokens, options.hidden, device="cuda", dtype=dtype)
            expected, dense = block(x), milliseconds(lambda: block(x))
            result = to_semi_structured(block, tokens=tokens, progress=False)
            got, sparse = block(x), milliseconds(lambda: block(x))
        change = ((got - expected).abs().max() / expected.abs().max()).item()
        print(f"| {tokens} | {dense:.3f} | {sparse:.3f} | {dense / sparse:.2f} | {result['converted']} of 3 | {change:.1e} |", flush=True)


if __name__ == "__main__":
    main()
