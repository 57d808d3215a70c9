#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes c4_draws.h: the windows that the loop of SparseGPT's and Wanda's get_c4 draws.    python3 make_c4_draws.py > c4_draws.h

Document i has (i * 37) % 97 + 1 letters, one token each, and a BOS in front; the texts themselves are made by the test.
"""
import platform
import random

DOCUMENTS, LENGTH, SAMPLES = 200, 80, 12
SEEDS = [0, 1, 42, 2**40 + 5]
tokens = [(i * 37) % 97 + 2 for i in range(DOCUMENTS)]

print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* Made by make_c4_draws.py with {platform.python_implementation()} {platform.python_version()}; do not edit. */")
print("#include <stdint.h>\n")
print(f"enum {{ DRAW_DOCUMENTS = {DOCUMENTS}, DRAW_LENGTH = {LENGTH}, DRAW_SAMPLES = {SAMPLES} }};\n")
print("static const struct draws {\n\tuint64_t seed;\n\tstruct {\n\t\tint document, offset;\n\t} windows[DRAW_SAMPLES];\n} c4_draws[] = {")
for seed in SEEDS:
    random.seed(seed)
    windows = []
    for _ in range(SAMPLES):
        while True:
            document = random.randint(0, DOCUMENTS - 1)
            if tokens[document] > LENGTH:
                break
        windows.append((document, random.randint(0, tokens[document] - LENGTH - 1)))
    print(f"\t{{{seed}ULL, {{" + ", ".join(f"{{{d}, {o}}}" for d, o in windows) + "}},")
print("};")
