#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models the time of a prune on several ranks from measured costs.

    model_ranks.py LAYERS FORWARD PRUNE [RANKS...]

FORWARD  seconds of one layer's dense forward pass over the calibration tokens
PRUNE    seconds of pruning one layer

Each rank has consecutive layers (src/run/layer_shares.h) and finishes at

    FORWARD · (layers up to its last one) + PRUNE · (its layers)

Reading, sending hidden states and the final sync to disk are not modelled.
"""
import sys


def shares(layers, forward, prune, ranks):
    low, high = 0.0, (forward + prune) * layers
    for _ in range(100):
        limit, first, counts = (low + high) / 2, 0, []
        for _ in range(ranks):
            count = 0
            while first < layers and forward * (first + 1) + prune * (count + 1) <= limit:
                first, count = first + 1, count + 1
            counts.append(count)
        if first == layers:
            high, best = limit, counts
        else:
            low = limit
    return high, best


def main():
    layers, forward, prune = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    alone = layers * prune
    print("| ranks | seconds | speed-up | layers of the first and last rank |\n| --- | --- | --- | --- |")
    for ranks in map(int, sys.argv[4:] or ["1", "2", "4", "8", "16", "32", "64"]):
        seconds, counts = (alone, [layers]) if ranks == 1 else shares(layers, forward, prune, ranks)
        used = [count for count in counts if count]
        print(f"| {ranks} | {seconds:.0f} | {alone / seconds:.1f} | {used[0]}, {used[-1]} |")


main()
