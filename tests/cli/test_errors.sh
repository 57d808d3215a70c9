#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every mistake gets a helpful message and the right exit code.
. "$2/tests/cli/common.sh"

if part unreadable_files; then
	if [ "$(id -u)" -eq 0 ]; then # root can read every file, so run the program as nobody
		printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$program" >"$work/as_nobody"
		program=$work/as_nobody
		chmod 755 "$program" "$work"
		"$program" --version >/dev/null 2>&1 || skip "root can read every file, and nobody cannot run the program"
	fi
	chmod 000 plain.txt good/model.safetensors
	expect 3 "plain.txt.*ermission" eval nearly-pruned --text plain.txt
	expect 3 "model.safetensors.*ermission" inspect good
	finish
fi

# the command line
expect 2 "usage" # no command at all
expect 2 "no such command: 'evl'.*did you mean 'eval'" evl
expect 2 "did you mean --text" eval good --txt plain.txt
expect 2 "did you mean --sequence-length" eval good --sequence-lenght 8
expect 2 "has no flag --frobnicate.*--help" eval good --frobnicate
# what SparseGPT's and Wanda's scripts call it, where the command has it
expect 2 "here it is --sequence-length" prune good -o out --seqlen 8
expect 2 "here it is --pattern 2:4" prune good -o out --sparsity_type 2:4
expect 2 "here it is --patterns LIST" compare good --sparsity 0.5
expect 2 "did you mean --samples" prune good -o out --nsamples 8
expect 2 "did you mean --sequence-length" prune good -o out --sequence_lenght 8
expect 2 "has no flag --dataset.*here it is --text FILE" eval good --dataset wikitext2
expect 2 "has no flag --wbits; 'fistapruner eval --help'" eval good --wbits 4
expect 2 "has no flag --batch-size" prune good -o out --batch-size 8 # generate's
expect 2 "damping is a solver setting: use --set damping" prune good -o out --damping 0.1
expect 2 "method 'fast': must be one of .*; that is a preset" prune good -o out --method fast
expect 2 "preset 'wanda': must be one of .*; that is a method" prune good -o out --preset wanda
expect 2 "has no flag -z" eval good -z
expect 2 "needs a value" eval good --text
expect 2 "takes no value" inspect good --json=yes
expect 2 "needs a model" eval
expect 2 "needs a text or a task: --text FILE" eval good
expect 2 "one at a time" eval good --text plain.txt --task rte=plain.txt
expect 2 "no task 'arc_esay'.*arc_easy, arc_challenge" eval good --task arc_esay=plain.txt
expect 2 "task 'arc_easy' needs its file, as --task arc_easy=ARC-Easy-Test.jsonl .JSON lines, .*https://allenai.org/data/arc" \
	eval good --task arc_easy
expect 2 "task 'rte' needs its file.*dev.tsv .table with tabs" eval good --task rte=
expect 2 "NAME=FILE; .* says where the files come from" eval good --task
expect 2 "only with --task" eval good --text plain.txt --samples-file samples.jsonl
expect 2 "reference.*only with --text" eval good --task arc_easy=plain.txt --reference good
expect 3 "vocabulary of 258 .*reference.*259" eval good --text plain.txt --sequence-length 32 --reference large-vocabulary
expect 3 "different tokenizers.*plain.txt.*token 0 " eval good --text plain.txt --sequence-length 32 --reference other-tokenizer
expect 3 "tokenizer" eval good --text plain.txt --sequence-length 32 --reference no-tokenizer
expect 3 "no-such-model" eval good --text plain.txt --reference no-such-model
expect 3 "line 1: not valid JSON" eval good --task arc_easy=plain.txt
expect 3 "missing.jsonl.*task 'arc_easy' reads ARC-Easy-Test.jsonl" eval good --task arc_easy=missing.jsonl
expect 2 "unexpected argument 'good'" inspect good good
expect 2 "whole number" eval good --text plain.txt --sequence-length eight
expect 2 "one of documents" eval good --text plain.txt --protocol none
expect 2 "auto.always.never" eval good --text plain.txt --progress sometimes
expect 2 "exclude each other" inspect good -q -v
expect 2 "such as 2G" eval good --text plain.txt --memory lots
# files that the command reads are not written, and nothing is left of those that could be
prune="prune good --calibration plain.txt --samples 2 --sequence-length 8"
for flag in metrics report; do
	# shellcheck disable=SC2086 # the words of a command
	expect 2 "--$flag plain.txt: the command reads this file" $prune -o out --$flag plain.txt
	# shellcheck disable=SC2086
	expect 2 "--$flag good/model.safetensors: is in the model's directory" $prune -o out --$flag good/model.safetensors
	# shellcheck disable=SC2086
	expect 2 "matches no operator" $prune -o out --only zzz --$flag "new-$flag"
	[ -e "new-$flag" ] && complain "--$flag of a refused run leaves a file"
	mkdir empty
	# shellcheck disable=SC2086
	expect 2 "--$flag empty/file: is in the output directory" $prune -o empty --$flag empty/file
	rmdir empty || complain "--$flag in the output directory leaves a file"
done
snapshot=hub/models--org--name/snapshots/main
mkdir -p "$snapshot"
cp good/* "$snapshot"
HF_HUB_CACHE=$PWD/hub expect 2 "is in the model's directory" prune org/name@main -o out --calibration plain.txt --samples 2 \
	--sequence-length 8 --metrics "$snapshot/model.safetensors"
# shellcheck disable=SC2086
expect 2 "name the same file" $prune -o out --metrics both --report both
# shellcheck disable=SC2086
expect 2 "needs a value.*next word is the flag --dry-run.*\./--dry-run" $prune -o --dry-run
# shellcheck disable=SC2086
expect 2 "N:M has the same sparsity everywhere" $prune --dry-run --pattern 2:4 --set allocate=0.1
compare="compare good --calibration plain.txt --text plain.txt"
# shellcheck disable=SC2086
expect 2 "a pattern of some operators only" $compare --patterns down_proj=2:4,50%
# shellcheck disable=SC2086
expect 2 "compares several, --patterns LIST" $compare --pattern 2:4
# shellcheck disable=SC2086
expect 2 "use --patterns LIST" $compare --set pattern=2:4
# a memory limit that is too low fails before the long passes start
expect 4 "--memory 3M.*takes [0-9]+M at least" prune "$source/models/llama-demo" -o out --calibration "$source/models/calibration.jsonl" --memory 3M
! grep -q gradients "$work/err" || complain "--memory 3M: gradients were computed first"
expect 2 "keeps N of every M.*2:4" inspect good --pattern 5:4
expect 2 "50%" inspect good --pattern half
expect 4 "cuda|device" eval good --text plain.txt --device cuda:99
expect 2 "toaster.*cpu" eval good --text plain.txt --device toaster

# names that no JSON can hold are refused before the work, not after it
latin1=$(printf 'caf\351')
cp -r good "$latin1"
cp plain.txt "$latin1.txt"
expect 2 "is not UTF-8 from byte 3 on" inspect "$latin1"
expect 2 "is not UTF-8 from byte 3 on" eval good --text "$latin1.txt" --sequence-length 32
expect 2 "is not UTF-8 from byte 3 on" prune good -o "$latin1-out" --calibration plain.txt --samples 8

# the output
expect 2 "plain.txt: exists already and is not a directory" prune good -o plain.txt --calibration plain.txt --samples 8

# the model
expect 3 "model.gguf: GGUF files are not read" inspect good/model.gguf
for command in "inspect" "eval --text plain.txt --sequence-length 32"; do
	# shellcheck disable=SC2086 # words on purpose
	set -- $command
	name=$1
	shift
	expect 3 "no-such-folder" "$name" no-such-folder "$@"
	expect 3 "org/no-such-model|cache" "$name" org/no-such-model "$@"
	expect 3 "plain.txt" "$name" plain.txt "$@"
	expect 3 "config.json" "$name" empty-folder "$@"
	expect 3 "config.json" "$name" no-config "$@"
	expect 3 "config.json" "$name" config-not-json "$@"
	expect 3 "model.safetensors|weights" "$name" no-weights "$@"
	expect 3 "truncated.*model.safetensors" "$name" truncated "$@"
	expect 3 "trailing.*model.safetensors" "$name" trailing "$@"
	expect 3 "stub.*model.safetensors" "$name" stub "$@"
	expect 3 "header" "$name" huge-header "$@"
	expect 3 "header|JSON" "$name" header-not-json "$@"
	expect 3 "overlap|offset|cover" "$name" overlapping "$@"
	expect 3 "F33" "$name" unknown-dtype "$@"
	expect 3 "duplicate|twice" "$name" duplicate-tensor "$@"
	expect 3 "pickle|opcode|os.system|os system" "$name" forbidden-pickle "$@"
done
eval_words="--text plain.txt --sequence-length 32"
# shellcheck disable=SC2086
{
	expect 3 "model.layers.1.mlp.down_proj.weight" eval missing-tensor $eval_words
	expect 3 "model.layers.1.mlp.down_proj.weight.*(16|24)" eval wrong-shape $eval_words
	expect 3 "model.layers.1.mlp.down_proj.weight.*I32" eval integer-weights $eval_words
	expect 3 "model.layers.1.mlp.down_proj.weight.*contains NaN" eval nan-weights $eval_words
	expect 3 "Mamba.*LlamaForCausalLM|Mamba.*llama" eval unsupported $eval_words
	expect 3 "hidden_size|num_" eval config-without-sizes $eval_words
	expect 3 "tokenizer" eval no-tokenizer $eval_words
	expect 3 "tokenizer.json" eval tokenizer-not-json $eval_words
}
expect 3 "Mamba.*llama" inspect unsupported --pattern 2:4
expect 5 "nearly-pruned.*2:4.*1 time in 1 tensor" inspect nearly-pruned --pattern 2:4

# the text
expect 3 "no-such.txt" eval good --text no-such.txt
expect 3 "no-such.txt" tokenize good --text no-such.txt
expect 3 "empty.txt.*empty|empty.txt.*no text" eval good --text empty.txt
expect 3 "short.txt.*window.*--sequence-length" eval good --text short.txt --sequence-length 32
expect 3 "tokens, 0 windows of 32, and 9 are needed; .*--samples.*--sequence-length" \
	prune good -o out --calibration short.txt --samples 9 --sequence-length 32
printf 'PAR1 and more' >table.parquet
printf 'w\0o\0r\0d\0' >utf16.txt
expect 3 "table.parquet: is a Parquet file.*JSON lines" eval good --text table.parquet
expect 3 "utf16.txt: is not text: 4 of its first 8 bytes are 0 or not UTF-8" prune good -o out --calibration utf16.txt
# a dash is standard input, which is empty here
expect 3 "/dev/stdin: has no text.*read only once" eval good --text -
expect 3 "/dev/stdin: has no text" prune good -o out --calibration -
expect 2 "64 positions" eval good --text plain.txt --sequence-length 65
expect 2 "2 tokens" eval good --text plain.txt --sequence-length 1
expect 3 "corrupt.jsonl.gz" eval good --text corrupt.jsonl.gz
expect 3 "cut.jsonl.gz" eval good --text cut.jsonl.gz
expect 3 "broken.jsonl.*61" eval good --text broken.jsonl
expect 3 "keyless.jsonl.*text" eval good --text keyless.jsonl
expect 3 "material|directory" eval good --text "$work/material"
finish
