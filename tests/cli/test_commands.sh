#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the commands print: results on stdout, everything else on stderr; --json is one document.
. "$2/tests/cli/common.sh"

# eval
expect_json "abs(d['perplexity'] - __import__('math').exp(d['mean_loss'])) < 1e-6 * d['perplexity']" \
	eval good --text documents.jsonl --sequence-length 32
expect_json "d['sequence_length'] == 32 and d['tokens'] == 31 * d['windows'] and d['protocol'] == 'documents'" \
	eval good --text documents.jsonl --sequence-length 32
expect_json "d['sequence_length'] == 64 and d['model'] == 'good' and d['architecture'] == 'LlamaForCausalLM'" \
	eval good --text documents.jsonl
expect_json "d['seconds'] > 0 and d['peak_memory_bytes'] > 1e6" eval good --text=documents.jsonl --threads=1
expect_output "^perplexity +[0-9]+\.[0-9]{4}$" eval good --text documents.jsonl
for protocol in documents wikitext2 ptb c4; do
	expect_json "d['protocol'] == '$protocol' and d['windows'] > 10" \
		eval good --text documents.jsonl --protocol "$protocol" --sequence-length 16
done
# compressed text gives the same figure, and so do two runs
one=$("$program" eval good --text documents.jsonl --json 2>/dev/null | grep '"perplexity"')
two=$("$program" eval good --text documents.jsonl.gz --json 2>/dev/null | grep '"perplexity"')
[ "$one" = "$two" ] && [ -n "$one" ] || complain "gzip changes the perplexity: $one $two"
# a memory limit does not change the figure
expect_json "abs(d['perplexity'] - float('${one#*: }'.rstrip(','))) < 1e-5 * d['perplexity']" \
	eval good --text documents.jsonl --memory 1M

# with a reference: the same perplexity, and the divergence from the reference
expect_json "d['kl'] == 0 and d['kl_stderr'] == 0 and d['kl_median'] == 0 and d['kl_p99'] == 0 and d['top1'] == 1 and \
d['perplexity_ratio'] == 1 and d['reference'] == 'good'" eval good --text documents.jsonl --reference good
expect_json "d['perplexity'] == float('${one#*: }'.rstrip(','))" eval good --text documents.jsonl --reference pruned
expect_json "0 < d['kl_median'] < d['kl'] < d['kl_p99'] and 0 < d['kl_stderr'] < d['kl'] and 0 < d['top1'] < 1 and \
abs(d['perplexity_ratio'] - d['perplexity'] / d['reference_perplexity']) < 1e-9" \
	eval pruned --text documents.jsonl --reference good --memory 1M
expect_output "^KL +0\.[0-9]{5} ± 0\.[0-9]{5} per token" eval pruned --text documents.jsonl --reference good

# progress and log go to stderr
"$program" eval good --text documents.jsonl -q >"$work/out" 2>"$work/err"
[ -s "$work/err" ] && complain "-q prints on stderr"
"$program" eval good --text documents.jsonl --progress always >"$work/out" 2>"$work/err"
grep -q "evaluating" "$work/err" || complain "--progress always shows no progress"
grep -q "evaluating" "$work/out" && complain "progress on stdout"
"$program" eval good --text documents.jsonl --progress never >"$work/out" 2>"$work/err"
grep -q "evaluating" "$work/err" && complain "--progress never shows progress"
if [ -w /dev/full ]; then
	"$program" generate good --prompt a --max-tokens 2 >/dev/full 2>"$work/err"
	code=$?
	[ "$code" -eq 1 ] && grep -q "stdout" "$work/err" || complain "generate to a full disk gives exit code $code"
	"$program" inspect good >/dev/full 2>"$work/err"
	[ $? -eq 1 ] || complain "a full disk counts as success"
fi

# inspect
expect_json "d['sparsity'] == 0 and d['violations'] == 0 and d['layers'] == 2 and d['dtype'] == 'F32'" inspect good
expect_json "d['parameters'] == 8560 and len(d['tensors']) == 20" inspect good
expect_json "d['sparsity'] == 0.5 and d['violations'] == 0 and d['pattern'] == '2:4'" inspect pruned --pattern 2:4
expect_json "d['sparsity'] == 0.5 and 0.2 < d['total_sparsity'] < 0.5" inspect pruned
expect_json "d['violations'] == 1" inspect nearly-pruned --pattern 2:4
expect_json "sum(t.get('violations', 0) for t in d['tensors']) == 1" inspect nearly-pruned --pattern 2:4
expect_json "d['violations'] == 1" inspect nearly-pruned --pattern 50%
expect_json "d['violations'] == 0" inspect nearly-pruned --pattern 49%
expect_json "d['not_finite'] == 1" inspect nan-weights
expect_json "len(d['tensors']) == 20 and 'llama' in d['note'].lower() and 'Mamba' in d['architecture']" inspect unsupported
expect_json "'down_proj' in d['note'] and len(d['tensors']) == 19" inspect missing-tensor
expect_output "^pattern +2:4 holds$" inspect pruned --pattern=2:4
# one line per kind of tensor; every tensor with --tensors
expect_output "^model\.layers\.\*\.mlp\.down_proj\.weight +2 +[0-9x]+ +F32 +50\.00% +0$" inspect pruned --pattern=2:4
grep -q "layers\.[0-9]" "$work/out" && complain "inspect prints every tensor without --tensors"
expect_output "^model\.layers\.1\.mlp\.down_proj\.weight +[0-9x]+ +F32 +50\.00%" inspect pruned --tensors
[ "$(grep -c "F32 " "$work/out")" -eq 20 ] || complain "inspect --tensors does not print every tensor"
expect 5 "2:4 is broken 1 time in 1 tensor$" inspect nearly-pruned --pattern 2:4
grep -A2 "^most violations:" "$work/out" | grep -q "layers\.[0-9].* 1$" || complain "inspect does not name the broken tensor"

# tokenize
expect_json "d['ids'] == [256] + list(b'short') and d['tokens'] == 6" tokenize good --text short.txt
expect_json "len(d['documents']) == 60 and d['documents'][0]['ids'][0] == 256" tokenize good --text documents.jsonl
# invalid UTF-8 counts as U+FFFD
expect_json "d['ids'] == [256] + list(b'caf\xc3 \xff ok'.decode(errors='replace').encode())" tokenize good --text invalid.txt
expect_output "^256 115 104 111 114 116$" tokenize good --text short.txt
[ "$(printf 'a\nb' | "$program" tokenize good)" = "256 97 10 98" ] || complain "standard input"
[ "$(printf 'a<s>b\0' | "$program" tokenize good)" = "256 97 256 98 0" ] || complain "special tokens and NUL"
finish
