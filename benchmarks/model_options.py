# SPDX-License-Identifier: Apache-2.0
"""The arguments of scripts that prune models and measure their perplexity."""
import argparse
import sys


def parser_for(description, seeds, work):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--program", default="fistapruner")
    parser.add_argument("--patterns", default="50%,2:4,70%", help="[50%%,2:4,70%%]")
    parser.add_argument("--seeds", default=seeds, help="[%(default)s]")
    parser.add_argument("--samples", default=128, type=int)
    parser.add_argument("--length", default=256, type=int)
    parser.add_argument("--work", default=work)
    return parser


def parse(parser):
    """The parsed options; .flags has those after --."""
    words = sys.argv[1:]
    options = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    options.flags = words[words.index("--") + 1:] if "--" in words else []
    return options
