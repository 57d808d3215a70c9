#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compare: the table, lists and recipes, continuing a stopped run, and the reports of compare and prune.
. "$2/tests/cli/common.sh"

compare() { # compare ARGUMENT...
	"$program" compare good --calibration documents.jsonl --text documents.jsonl --samples 16 --sequence-length 32 \
		--threads 1 "$@" >"$work/out" 2>"$work/err" </dev/null
}
holds() { # holds WHAT EXPRESSION: the Python expression is true of the document d in $work/out
	python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
sys.exit(0 if $2 else 1)" "$work/out" || complain "$1"
}

expect 2 "--text FILE" compare good --calibration documents.jsonl
expect 2 "must be one of" compare good --calibration documents.jsonl --text documents.jsonl --methods wanda,magic
expect 2 "main.sparsity" compare good --calibration documents.jsonl --text documents.jsonl --recipe table
expect 2 "pattern 'half'" compare good --calibration documents.jsonl --text documents.jsonl --patterns 50%,half
expect 2 "comma" compare good --calibration documents.jsonl --text documents.jsonl --methods wanda,,fista
expect 2 "whole number" compare good --calibration documents.jsonl --text documents.jsonl --seeds 1,x
expect 3 "no-such.txt" compare good --calibration no-such.txt --text documents.jsonl --samples 4 --sequence-length 32
expect 3 "no-such.txt" compare good --calibration documents.jsonl --text no-such.txt --samples 4 --sequence-length 32
expect 1 "no/such" compare good --calibration documents.jsonl --text documents.jsonl --report no/such/report.html
expect 1 "no/such" demo --report no/such/report.html
rm -f fistapruner-compare.jsonl

# every row has the figures that prune and eval give
compare --work kept --methods magnitude,wanda,fista --patterns 50%,2:4 --json || complain "compare fails"
holds "the rows" "[r['method'] for r in d['rows']] == ['dense'] + ['magnitude', 'wanda', 'fista', 'fista'] * 2"
holds "the keys" "all(set(r) >= {'method', 'preset', 'pattern', 'perplexity', 'kl', 'relative_error', 'seconds'} for r in d['rows'])"
holds "the divergences" "d['rows'][0]['kl'] == 0 and all(0 < r['kl_stderr'] < r['kl'] and 0 < r['top1'] < 1 for r in d['rows'][1:])"
holds "the errors by layer" "all(min(r['hidden_errors']) > 0 for r in d['rows'][1:])"
holds "nothing was there before" "d['reused'] == 0"
cp "$work/out" first.json
"$program" prune good -o wanda --calibration documents.jsonl --samples 16 --sequence-length 32 --threads 1 --method wanda \
	--pattern 2:4 --report prune.html >"$work/out" 2>"$work/err" || complain "prune --report fails"
grep -q "Error by layer" prune.html || complain "the report of prune has no errors by layer"
"$program" eval wanda --text documents.jsonl --reference good --sequence-length 32 --threads 1 --json >"$work/out" 2>"$work/err"
python3 -c "
import json, sys
row = [r for r in json.load(open('first.json'))['rows'] if r['method'] == 'wanda' and r['pattern'] == '2:4'][0]
report = json.load(open('wanda/pruning_report.json'))
alone = json.load(open(sys.argv[1]))
assert all(row[key] == alone[key] for key in ('perplexity', 'kl', 'kl_stderr', 'top1')), (row, alone)
assert row['relative_error'] == report['relative_error'] and row['sparsity'] == report['sparsity'], row
" "$work/out" || complain "a row differs from prune and eval"

# the same when the layer fit changes biases too; what a basis changes outside the pruned operators is rounded to the
# checkpoint's type only when it is written
for basis in none full; do
	tiny="--samples 8 --sequence-length 64 --threads 1 --set fit_steps=8 --set basis_steps=8 --set layers=0 --basis $basis"
	"$program" prune "$source/models/opt-demo" -o "fitted-$basis" --calibration "$source/models/calibration.jsonl" $tiny \
		--preset best --pattern 2:4 >"$work/out" 2>"$work/err" || complain "prune by preset best fails"
	"$program" compare "$source/models/opt-demo" --calibration "$source/models/calibration.jsonl" --text documents.jsonl \
		$tiny --methods fista --presets best --patterns 2:4 --work fit --json >first.fit 2>"$work/err" ||
		complain "compare by preset best"
	"$program" eval "fitted-$basis" --text documents.jsonl --sequence-length 64 --threads 1 --json >"$work/out" 2>"$work/err"
	python3 -c "
import json, sys
row = json.load(open('first.fit'))['rows'][1]
alone = json.load(open(sys.argv[1]))['perplexity']
assert abs(row['perplexity'] / alone - 1) <= (5e-3 if row['basis']['kind'] == 'full' else 0), (row['perplexity'], alone)
assert row['basis']['kind'] == '$basis', row['basis']
" "$work/out" || complain "a row with a layer fit and the basis $basis differs from prune and eval"
done

# a column for the basis, if some row has one; rows with the same pattern share what was learned
compare --work bases --methods wanda,sparsegpt --patterns 2:4 --basis full --report bases.html || complain "compare --basis fails"
grep -Eq "^method +correction +basis +pattern " "$work/out" && grep -Eq "^SparseGPT +- +full +2:4 " "$work/out" ||
	complain "compare does not print the basis"
grep -q "<th>SparseGPT</th><td>full</td>" bases.html || complain "the report does not have the basis"
compare --work bases --methods wanda,sparsegpt --patterns 2:4 --basis full --json
holds "the gain of a shared basis" "all(r['basis']['removed'][1] < r['basis']['removed'][0] for r in d['rows'][1:]) and \\
	d['rows'][1]['basis']['removed'] == d['rows'][2]['basis']['removed']"
cp "$work/out" bases.json
compare --work first --methods magnitude,wanda --patterns 2:4 --basis full --json
holds "the row that learned a shared basis decides about it" "len({r['kl'] for r in d['rows'] + json.load(open('bases.json'))['rows'] if r['method'] == 'wanda'}) == 1"
compare --work bases --methods wanda --patterns 2:4 --report plain.html || complain "compare without a basis"
grep -q basis "$work/out" && complain "a column for a basis that no row has"
grep -q "<th>method</th><th>basis</th>" plain.html && complain "the report has a column for a basis that no row has"

# finished rows are not run again, even if the journal was truncated; other settings are another row
compare --work kept --methods magnitude,wanda,fista --patterns 50%,2:4 --json
holds "a second run runs nothing" "d['reused'] == 9"
python3 -c "
import json, sys
a, b = json.load(open('first.json')), json.load(open(sys.argv[1]))
sys.exit(a['rows'] != b['rows'])" "$work/out" || complain "kept rows differ"
head -c -40 kept/compare.jsonl >cut && mv cut kept/compare.jsonl
compare --work kept --methods magnitude,wanda,fista --patterns 50%,2:4 --json
holds "only the cell that was cut off is run again" "d['reused'] == 8"
compare --work kept --methods magnitude,wanda,fista --patterns 50%,2:4 --json
holds "a line after a cut one is found" "d['reused'] == 9"
compare --work kept --methods magnitude,wanda,fista --patterns 50%,2:4 --samples 8 --json
holds "other samples are other cells" "d['reused'] == 1"
touch good/model.safetensors
compare --work kept --methods magnitude --patterns 50% --json
holds "another model is another cell" "d['reused'] == 0"

# a stopped run keeps its finished rows
"$program" compare good --calibration documents.jsonl --text documents.jsonl --samples 16 --sequence-length 32 --threads 1 \
	--recipe sparsity --work stopped >"$work/out" 2>"$work/err" </dev/null &
child=$!
while kill -0 $child 2>/dev/null && [ "$(cat stopped/compare.jsonl 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.05; done
kill -9 $child 2>/dev/null
wait $child 2>/dev/null
lines=$(wc -l <stopped/compare.jsonl)
head -n "$lines" stopped/compare.jsonl >finished
compare --recipe sparsity --work stopped --json
holds "a killed run goes on" "d['reused'] == $lines and len(d['rows']) == 29"
head -n "$lines" stopped/compare.jsonl | cmp -s - finished || complain "finished cells were changed"
[ "$(cut -d: -f2 stopped/compare.jsonl | cut -d, -f1 | sort | uniq -d | wc -l)" = 0 ] || complain "a row is there twice"

# recipes
compare --recipe seeds --json --report seeds.html || complain "seeds"
holds "mean and deviation" "len(d['summary']) == 1 and d['summary'][0]['seeds'] == 5 and d['summary'][0]['deviation'] > 0"
holds "the mean" "abs(sum(r['perplexity'] for r in d['rows'][1:]) / 5 - d['summary'][0]['mean']) < 1e-6"
[ -s seeds.html.jsonl ] || complain "the journal is not beside the report"
compare --recipe correction --json || complain "correction"
holds "corrections" "sorted(r['correction'] for r in d['rows'] if r['method'] == 'fista') == ['intra', 'none']"
compare --recipe samples --samples-list 4,8,16 --report samples.html || complain "samples"
compare --recipe sparsity --work stopped --report curve.html || complain "curve"
for name in dense Wanda SparseGPT "FISTAPruner \(paper\)" "layer reconstruction \(best\)"; do
	grep -Eq "^$name " "$work/out" || complain "compare prints no row '$name'"
done

# report pages: well-formed, self-contained and complete
for page in prune.html bases.html seeds.html samples.html curve.html; do
	python3 - "$page" <<'EOF' || complain "$page"
import html.parser, sys
text = open(sys.argv[1]).read()
class Parser(html.parser.HTMLParser):
    stack, links = [], []
    def handle_starttag(self, tag, attributes):
        if tag not in ("meta",): self.stack.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href")]
    def handle_startendtag(self, tag, attributes): pass
    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag, tag
parser = Parser()
parser.feed(text)
assert not parser.stack and not parser.links and "http" not in text and "<script" not in text
assert "nan" not in text and "inf" not in text.replace("info", "")
assert "prefers-color-scheme:dark" in text and "@media print" in text and "Settings and versions" in text
assert "<svg" in text or sys.argv[1] == "seeds.html"
assert "Time by stage" in text and "layer" in text
EOF
done
grep -q "Perplexity and sparsity" curve.html || complain "no curve over sparsity"
grep -q "Perplexity and calibration text" samples.html || complain "no curve over samples"
grep -q "±" seeds.html || complain "no deviation"
finish
