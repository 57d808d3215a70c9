#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune: flags, output files and errors.
. "$2/tests/cli/common.sh"

prune() { # prune FOLDER ARGUMENT...
	folder=$1
	shift
	"$program" prune good -o "$folder" --calibration documents.jsonl --samples 16 --sequence-length 32 "$@" \
		>"$work/out" 2>"$work/err" </dev/null
}
before=$(cat good/* | cksum)

expect 2 "-o DIR" prune good --calibration documents.jsonl
expect 2 "--set.*name=value" prune good -o out --set iterations
expect 2 "--set.*'steps'" prune good -o out --set steps=3
expect 2 "use --set iterations=" prune good -o out --iterations 3
expect 2 "did you mean --warm-start" prune good -o out --warmstart wanda
expect 2 "one of" prune good -o out --method magic
expect 2 "layers '7'.*<= 1" prune good -o out --calibration documents.jsonl --samples 4 --sequence-length 32 --layers 7
expect 3 "no-such.txt" prune good -o out --calibration no-such.txt
expect 1 "no/such/folder" prune good -o out --calibration documents.jsonl --metrics no/such/folder/file
expect 3 "down_proj.*contains NaN" prune nan-weights -o out --calibration documents.jsonl --samples 4 --sequence-length 32
[ -e out ] && complain "a failed run left its output"

prune plan --dry-run || complain "--dry-run fails"
grep -Eq "^operators +pattern +count$" "$work/out" || complain "--dry-run does not count the operators"
[ -e plan ] && complain "--dry-run writes"

# operators chosen by name: listed, pruned with their own pattern, and the others left alone
choice="--only proj --skip layers\\.0\\.|q_proj --pattern down_proj=1:4 --pattern mlp=2:4"
# shellcheck disable=SC2086
prune plan --dry-run $choice --json || complain "--dry-run with a choice fails"
python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
got = {s['name'].split('.', 3)[3]: s['pattern'] for s in d['selected']}
mlp = {'mlp.down_proj.weight': '1:4', 'mlp.gate_proj.weight': '2:4', 'mlp.up_proj.weight': '2:4'}
assert got == {**{f'self_attn.{x}_proj.weight': '50%' for x in 'kvo'}, **mlp} and d['operators'] == 6, got
assert all(s['layer'] == 1 for s in d['selected'])
" "$work/out" || complain "the list of --dry-run"
# shellcheck disable=SC2086
prune plan --dry-run $choice && grep -Eq '^model\.layers\.\*\.mlp\.down_proj\.weight +1:4 +1$' "$work/out" ||
	complain "the table of --dry-run"
# shellcheck disable=SC2086
prune chosen $choice --json || complain "a choice fails"
python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert len(d['operators']) == 6, d
for o in d['operators']:
    wanted = {'down': 0.75, 'gate': 0.5, 'up': 0.5}.get(o['operator'])
    assert ('pattern' in o) == (wanted is not None) and abs(o['sparsity'] - (wanted or 0.5)) < 0.01, o
" "$work/out" || complain "the document of a choice"
expect 2 "--only 'fc1': matches no operator; .*down_proj" prune good -o out --calibration documents.jsonl --samples 4 \
	--sequence-length 32 --only fc1
expect 2 "--skip '\\(': is not a regular expression" prune good -o out --calibration documents.jsonl --samples 4 \
	--sequence-length 32 --skip '('
expect 2 "--pattern: pattern '3:2'" prune good -o out --pattern down_proj=3:2
expect 2 "cannot be combined with --only" prune good -o out --calibration documents.jsonl --samples 4 --sequence-length 32 \
	--only down_proj --allocate 0.1

for method in $("$program" help prune | sed -n 's/^ *--method \([a-z|]*\).*/\1/p' | tr '|' ' '); do
	prune "$method" --method "$method" --pattern 2:4 --json || complain "$method fails"
	python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert d['output'] == d['method'] == '$method' and d['pattern'] == '2:4' and 0.5 <= d['sparsity'] < 0.6, d
assert 0 < d['relative_error'] < 1 and d['seconds'] > 0 and d['peak_memory_bytes'] > 0 and d['stages'], d
assert len(d['operators']) == 14
assert all(set(o) >= {'name', 'sparsity', 'relative_error', 'lambda', 'iterations', 'seconds'} for o in d['operators'])
" "$work/out" || complain "the document of $method"
	expect_json "d['violations'] == 0 and d['negative_zeros'] == 0" inspect "$method" --pattern 2:4
	cmp -s good/config.json "$method/config.json" && cmp -s good/tokenizer.json "$method/tokenizer.json" ||
		complain "$method: config or tokenizer changed"
	[ -s "$method/pruning_report.json" ] || complain "$method: no report"
done
expect 2 "wanda.*exist" prune good -o wanda --calibration documents.jsonl --samples 4 --sequence-length 32

prune again --method wanda --pattern 2:4 --threads 2
prune twice --method wanda --pattern 2:4 --threads 2
cmp -s again/model.safetensors twice/model.safetensors || complain "two runs differ"

# --check: the figures of eval --reference on windows that the run does not use; the output stays the same
"$program" tokenize good --text documents.jsonl --json >tokens.json 2>"$work/err"
prune checked --method wanda --pattern 2:4 --threads 2 --check --json || complain "--check fails"
cmp -s again/model.safetensors checked/model.safetensors && cmp -s again/pruning_report.json checked/pruning_report.json ||
	complain "--check changes the output"
python3 -c "
import json, sys
c = json.load(open(sys.argv[1]))['check']
ids = [i for d in json.load(open(sys.argv[2]))['documents'] for i in d['ids']]
assert c['windows'] == min(len(ids) // 32 - 16, 2048) and c['tokens'] == 31 * c['windows'], c
assert 0 < c['kl_median'] < c['kl_p99'] and 0 < c['kl_stderr'] < c['kl'] and 0 < c['top1'] < 1, c
assert abs(c['perplexity_ratio'] - c['perplexity'] / c['reference_perplexity']) < 1e-8, c
" "$work/out" tokens.json || complain "the figures of --check"
prune checked --method wanda --pattern 2:4 --threads 2 --check --json --resume || complain "--check of a finished run fails"
python3 -c "import json, sys; assert json.load(open(sys.argv[1]))['check']['kl'] > 0" "$work/out" || complain "a finished run is not checked"
prune shown --method magnitude --check || complain "--check fails for people"
grep -Eq "^check +perplexity [0-9.]+ \(dense [0-9.]+\) on [0-9]+ windows" "$work/out" ||
	complain "--check prints no perplexity"
grep -Eq "^ +KL [0-9.]+ ± [0-9.]+ per token, same top 1 [0-9.]+%$" "$work/out" || complain "--check prints no divergence"
expect 2 "--check.*--calibration FILE" prune good -o out --method magnitude --check
expect 3 "--check.*32 tokens.*fewer samples" prune good -o out --method wanda --calibration documents.jsonl --samples 0 --sequence-length 32 --check
[ -e out ] && complain "a refused --check left its output"

prune part --layers 1 --metrics lines.jsonl --pattern=50% || complain "--layers fails"
[ "$(wc -l <lines.jsonl)" -eq 7 ] || complain "--metrics: not one line per operator"
python3 -c "import json; [json.loads(line) for line in open('lines.jsonl')]" || complain "--metrics: not JSON lines"
mkfifo pipe
cat pipe >piped &
timeout 60 "$program" prune good -o fed --method magnitude --metrics pipe >"$work/out" 2>"$work/err" </dev/null || complain "--metrics to a pipe"
wait $!
[ "$(wc -l <piped)" -eq 14 ] || complain "--metrics to a pipe: not one line per operator"
expect_json "all((t['sparsity'] == 0.5) == ('layers.1.' in t['name']) for t in d['tensors'] if t['operator'])" inspect part

# the last screen: kinds, the worst operators, totals, the next commands; every operator on request only
prune "two words" --method wanda --pattern 2:4 || complain "a directory with a space fails"
for line in "^kind +operators +zeros +mean error +worst error$" "^down +2 +50\.00%( +0\.[0-9]{5}){2}$" "^output +two words$" \
	"^method +Wanda$" "^pattern +2:4$" "^sparsity +50\.0000% of 14 operators$" "^relative error +0\.[0-9]{5}$" \
	"fistapruner inspect 'two words' --pattern 2:4$" "fistapruner eval 'two words' --text TEXT --reference good$"; do
	grep -Eq -e "$line" "$work/out" || complain "prune does not print '$line'"
done
[ "$(grep -c "^model\.layers\." "$work/out")" -eq 5 ] || complain "prune does not print five operators"
command=$(sed -n 's/^ *\(.* inspect .*\)/\1/p' "$work/out")
sh -c "$command" >"$work/out" 2>"$work/err" || complain "the command that prune prints fails: $command"
prune all --method wanda --pattern 2:4 --verbose
[ "$(grep -c "^model\.layers\." "$work/out")" -eq 19 ] || complain "--verbose does not print every operator"
prune allocated --method wanda --pattern 50% --allocate 0.1
grep -q "inspect allocated$" "$work/out" || complain "with --allocate inspect cannot check the share of each matrix"

# what was folded into the weights
prune full --method wanda --pattern 2:4 --basis full --report full.html || complain "--basis full fails"
grep -Eq "^basis +full: the pattern removes [0-9.]+% → [0-9.]+% of the squared weights, head untied \([0-9.]+ [KM]iB\)$" "$work/out" ||
	complain "prune does not print its basis"
grep -q "(full: residual stream and heads)" full.html || complain "the report of prune does not have its basis"
python3 -c "
import json, os
b = json.load(open('full/pruning_report.json'))['basis']
assert b['kind'] == 'full' and b['untied_head'] and b['removed'][1] < b['removed'][0], b
grown = os.path.getsize('full/model.safetensors') - os.path.getsize('good/model.safetensors') # the header is not the same
assert abs(grown - b['head_bytes']) < 1000 < b['head_bytes'], (grown, b)
" || complain "the basis in the report"
prune local --method wanda --pattern 2:4 --basis local || complain "--basis local fails"
grep -Eq "^basis +local: the pattern removes [0-9.]+% → [0-9.]+% of attention's squared weights$" "$work/out" ||
	complain "prune does not print its local basis"
prune none --method wanda --pattern 2:4 && grep -q "^basis" "$work/out" && complain "a basis that was not asked for"

# layers count from 0 everywhere
prune counted --method wanda --layers 1 --verbose
grep -q "^layer 1 of 0-1: " "$work/err" || complain "progress does not count layers from 0"
grep -q "^layer 1 down: " "$work/err" || complain "the log of an operator does not count layers from 0"
grep -Eq "layer (0|2)" "$work/err" && complain "a layer that was not asked for is in the log"

[ "$(cat good/* | cksum)" = "$before" ] || complain "the input changed"
finish
