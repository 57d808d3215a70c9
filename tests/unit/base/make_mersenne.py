#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes mersenne_fixture.h: what CPython's random module draws.    python3 make_mersenne.py > mersenne_fixture.h"""
import platform
import random

SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**53 + 12345, 2**64 - 1]
BELOW = [1, 2, 3, 10, 356317, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**62]

print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* Made by make_mersenne.py with {platform.python_implementation()} {platform.python_version()}; do not edit. */")
print("#include <stdint.h>\n")
print("static const int64_t below_limits[] = {" + ", ".join(f"{n}LL" for n in BELOW) + "};\n")
print("static const struct drawn {\n\tuint64_t seed;\n\tuint32_t words[4]; /* getrandbits(32) */\n\tuint32_t few_bits; /* getrandbits(5) */\n"
      "\tuint32_t word_1000; /* after 1,000 more */\n\tdouble units[3]; /* random() */\n"
      f"\tint64_t below[{len(BELOW)}]; /* randrange(limit) */\n\tint64_t between[5]; /* randint(-3, 12) */\n" "} drawn_numbers[] = {")
for seed in SEEDS:
    random.seed(seed)
    words = [random.getrandbits(32) for _ in range(4)]
    few = random.getrandbits(5)
    for _ in range(1000):
        random.getrandbits(32)
    later = random.getrandbits(32)
    units = [random.random() for _ in range(3)]
    below = [random.randrange(n) for n in BELOW]
    between = [random.randint(-3, 12) for _ in range(5)]
    print("\t{" + f"{seed}ULL, {{{', '.join(f'{w}U' for w in words)}}}, {few}U, {later}U, {{{', '.join(u.hex() for u in units)}}},")
    print("\t {" + ", ".join(f"{b}LL" for b in below) + "}, {" + ", ".join(map(str, between)) + "}},")
print("};")
