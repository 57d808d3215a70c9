#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# benchmarks/methods.py: one table of methods, bases and patterns, and a line for every run.
. "$2/tests/cli/common.sh"

mkdir alone
cp "$source/benchmarks/methods.py" "$source/benchmarks/model_options.py" alone # it needs nothing else of the repository
methods() { # methods ARGUMENT...
	python3 alone/methods.py --program "$program" --calibration documents.jsonl --text documents.jsonl --samples 16 --length 32 \
		--patterns 2:4 --device cpu --work runs --tsv runs.tsv "$@" good -- --threads 1 >"$work/out" 2>"$work/err" </dev/null
}

methods --jobs 3 --methods wanda --presets fast --basis none,local,full --seeds 1,2 || complain "methods.py fails"
for line in "^\| dense \| \| [0-9.]+ \|$" "^\| wanda \| none \| [0-9.]+ / 0\.[0-9]{4} \|$" "^\| wanda \| full \| " "^\| fast \| local \| "; do
	grep -Eq -e "$line" "$work/out" || complain "methods.py does not print '$line'"
done
python3 - "$work/out" <<'EOF' || complain "the lines of methods.py"
import csv, statistics, sys
rows = list(csv.DictReader(open("runs.tsv"), delimiter="\t"))
pruned = rows[1:]
assert rows[0]["method"] == "dense" and rows[0]["kl"] == "0.0", rows[0]
assert [(r["method"], r["basis"], r["seed"]) for r in pruned] == [
    (method, basis, seed) for basis in ("none", "local", "full") for seed in "12" for method in ("wanda", "fast")], pruned
assert all(r["kind"] == r["basis"] and r["pattern"] == "2:4" and float(r["kl"]) > 0 for r in pruned)
own = [r for r in pruned if (r["method"], r["basis"]) == ("wanda", "full")]
means = [statistics.mean(float(r[key]) for r in own) for key in ("perplexity", "kl")]
assert f"| wanda | full | {means[0]:.3f} / {means[1]:.4f} |" in open(sys.argv[1]).read(), means
EOF
cp runs.tsv before.tsv
methods --methods wanda --presets fast --basis none,local,full --seeds 1,2 && cmp -s before.tsv runs.tsv || complain "kept runs are run again"

# without --basis each preset has its own, and methods have none
methods --methods wanda --presets fast || complain "methods.py without --basis fails"
python3 -c "
import csv
rows = [(r['method'], r['basis'], r['kind']) for r in csv.DictReader(open('runs.tsv'), delimiter='\t')]
assert rows[1:] == [('wanda', '', 'none'), ('fast', '', 'local')], rows" || complain "the presets' own bases"
finish
