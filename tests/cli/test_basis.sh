#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prune --basis: the output is an ordinary checkpoint of the same model, whatever is tied, left out, resumed or damaged.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1
models=$source/models
text=$models/calibration.jsonl
head -n 12 "$models/evaluation.jsonl" >held-out.jsonl
steps=12
windows=8
pair="llama-demo opt-demo"
stops="basis layer-00000 layer-00003"
if sanitized; then # such a build is several times slower
	steps=6
	pair=opt-demo
	stops=layer-00000
fi

# prune MODEL FOLDER ARGUMENT...: few windows and steps
prune() {
	from=$1
	to=$2
	shift 2
	"$program" prune "$from" -o "$to" --calibration "$text" --samples $windows --sequence-length 64 --threads 1 --device cpu \
		--set basis_steps=$steps "$@" >"$work/out" 2>"$work/err" </dev/null
}
# holds WHAT EXPRESSION FOLDER...: the Python expression is true of the tensors t and configs c of the folders
holds() {
	what=$1
	expression=$2
	shift 2
	python3 - "$expression" "$@" <<'PYTHON' || complain "$what"
import json, struct, sys

def number(kind, data):
    if kind == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    return list(struct.unpack("<%d%s" % (len(data) // {"F16": 2, "F32": 4}[kind], {"F16": "e", "F32": "f"}[kind]), data))

def tensors(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    assert max(t["data_offsets"][1] for t in header.values()) == len(data) - 8 - size, "a hole or bytes behind the last tensor"
    return {n: (v["dtype"], v["shape"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]]) for n, v in header.items()}

t = [tensors(folder) for folder in sys.argv[2:]]
c = [json.load(open(folder + "/config.json")) for folder in sys.argv[2:]]
changed = {name for name in t[0] if t[0][name] != t[-1].get(name)}
def all_are(name, value):
    return all(x == value for x in number(*[t[-1][name][i] for i in (0, 2)]))
sys.exit(0 if eval(sys.argv[1]) else 1)
PYTHON
}
# same_model DENSE FOLDER KL: the model computes the same up to a divergence
same_model() {
	expect_json "0 <= d['kl'] < $3 and 0.999 < d['perplexity_ratio'] < 1.001" eval "$2" --text held-out.jsonl \
		--reference "$1" --sequence-length 64 --threads 1 --device cpu
}

if part transformers; then
	python=${FP_PYTHON:-python3}
	"$python" -c "import torch, transformers" 2>/dev/null || skip "there is no transformers; FP_PYTHON names a python3 that has it"
	"$python" "$source/tests/cli/oracle_basis.py" "$program" "$source" "$work/oracle" >"$work/out" 2>"$work/err" || complain "oracle_basis.py"
	cat "$work/out"
	finish
fi

if part ranks; then
	command -v mpirun >/dev/null || skip "there is no mpirun"
	[ -e "$(dirname "$program")/libfistapruner_mpi.so" ] || skip "the program was built without MPI"
	export OMP_WAIT_POLICY=passive
	for model in $pair; do
		for flags in "--basis full --pattern 2:4" "--basis local --layers 2-4"; do
			rm -rf alone shared
			# shellcheck disable=SC2086 # the flags are words
			prune "$models/$model" alone --preset fast --set search_steps=8 --set refit_steps=8 --correction intra $flags || complain "one rank fails: $flags"
			for ranks in 2 3; do
				rm -rf shared
				# shellcheck disable=SC2086
				mpirun --allow-run-as-root --oversubscribe -n $ranks "$program" prune "$models/$model" -o shared --calibration "$text" \
					--samples $windows --sequence-length 64 --threads 1 --device cpu --set basis_steps=$steps --preset fast --set search_steps=8 \
					--set refit_steps=8 --correction intra $flags >"$work/out" 2>"$work/err" </dev/null || complain "$ranks ranks fail: $model $flags"
				diff -r alone shared >/dev/null || complain "$ranks ranks give other bytes than one: $model $flags"
			done
		done
	done
	finish
fi

if part resume; then
	# begin SIGNAL FILE FLAGS...: starts a run and sends the signal when the file is in its working folder
	begin() {
		number=$1
		file=$2
		shift 2
		rm -rf stopped .stopped.partial
		"$program" prune "$model" -o stopped --calibration "$text" --samples $windows --sequence-length 64 --threads 1 --device cpu \
			--set basis_steps=$steps "$@" >"$work/out" 2>"$work/err" </dev/null &
		child=$!
		while kill -0 $child 2>/dev/null && [ ! -e ".stopped.partial/$file" ]; do sleep 0.01; done
		kill "-$number" $child 2>/dev/null || complain "the run was over before the signal came"
		wait $child
		[ -e stopped ] && complain "an unfinished run has its output under the final name"
	}
	for run in "llama-demo --preset fast --basis full --pattern 2:4" "opt-demo --preset fast --basis full --pattern 2:4" \
		"opt-demo --preset best --set fit_steps=4 --basis full" \
		"llama-demo --method wanda --basis local --pattern 2:4 --samples 128"; do # enough for a signal to come in time
		model=$models/${run%% *}
		flags=${run#* }
		rm -rf whole
		# shellcheck disable=SC2086
		prune "$model" whole $flags || complain "prune $run fails"
		for file in $stops; do
			# shellcheck disable=SC2086
			begin KILL $file $flags
			# shellcheck disable=SC2086
			prune "$model" stopped $flags --resume || complain "a resume fails: $run, killed at $file"
			diff -r whole stopped >/dev/null || complain "a resumed run differs: $run, killed at $file"
			# a run without a finished layer is begun again
			[ $file != basis ] && grep -q "the model is the same" "$work/err" &&
				complain "the basis is learned twice: $run, killed at $file"
		done
	done
	# a damaged basis is learned again, and is the same
	# shellcheck disable=SC2086
	begin KILL layer-00001 $flags
	printf damaged | dd of=.stopped.partial/basis bs=1 seek=200 conv=notrunc 2>/dev/null
	# shellcheck disable=SC2086
	prune "$model" stopped $flags --resume || complain "a resume with a damaged basis fails"
	grep -q "basis: is damaged; the basis will be learned again" "$work/err" || complain "a damaged basis is not noticed"
	diff -r whole stopped >/dev/null || complain "a run with a damaged basis differs"
	# shellcheck disable=SC2086
	begin KILL layer-00000 $flags
	# shellcheck disable=SC2086
	expect 2 "setting basis 'local'.*'none'" prune "$model" -o stopped --calibration "$text" --samples $windows --sequence-length 64 \
		--threads 1 --device cpu --set basis_steps=$steps $flags --basis none --resume
	# shellcheck disable=SC2086
	expect 3 "cannot be resumed; remove it to start over" prune "$model" -o stopped --calibration "$text" --samples $windows \
		--sequence-length 64 --threads 1 --device cpu --set basis_steps=$steps $flags --basis full --resume # its file has another size
	finish
fi

# A tied model gets a head of its own; norms are 1; all else of the config stays.
for model in $pair; do
	prune "$models/$model" "$model-full" --method wanda --pattern 2:4 --basis full || complain "$model: --basis full fails"
	grep -q "basis: full: what the pattern removes falls from" "$work/err" || complain "$model: the log does not tell of the basis"
	holds "$model: its head" "'lm_head.weight' not in t[0] and set(t[1]) - set(t[0]) == {'lm_head.weight'} and \
t[1]['lm_head.weight'][:2] == next(v for n, v in t[0].items() if n.endswith('embed_tokens.weight'))[:2]" "$models/$model" "$model-full"
	holds "$model: its config" "c[1] == {**c[0], 'tie_word_embeddings': False}" "$models/$model" "$model-full"
	holds "$model: its norms" "all(all_are(n, 0 if n.endswith('bias') and 'layers' in n else 1) for n in t[-1] if 'norm' in n and \
(n.endswith('weight') or 'layers' in n))" "$models/$model" "$model-full"
	holds "$model: every tensor changes" "changed == set(t[0])" "$models/$model" "$model-full"
	expect_json "d['violations'] == 0 and d['negative_zeros'] == 0" inspect "$model-full" --pattern 2:4
	expect_json "1 < d['perplexity'] < 1000" eval "$model-full" --text held-out.jsonl --sequence-length 64 --threads 1
	python3 -c "
import json
b = json.load(open('$model-full/pruning_report.json'))['basis']
assert b['kind'] == 'full' and b['untied_head'] and 0 < b['removed'][1] < b['removed'][0] < 1, b
assert 0 < b['removed_of_heads'][1] < b['removed_of_heads'][0] < 1, b
" || complain "$model: the report of the basis"
	prune "$models/$model" "$model-again" --method wanda --pattern 2:4 --basis full
	diff -r "$model-full" "$model-again" >/dev/null || complain "$model: two runs differ"
	# and once more, from an output whose head is its own
	prune "$model-full" "$model-twice" --method wanda --pattern 2:4 --basis full || complain "$model: a second basis fails"
	holds "$model: no second head" "set(t[0]) == set(t[1]) and c[0] == c[1]" "$model-full" "$model-twice"

	# so few weights are removed that the model is the dense one: in the new basis, with layers left out, and local
	prune "$models/$model" "$model-dense" --method wanda --pattern 0.1% --basis full || complain "$model: 0.1% fails"
	same_model "$models/$model" "$model-dense" 1e-4
	prune "$models/$model" "$model-part" --method wanda --pattern 0.1% --basis full --layers 1-1 || complain "$model: --layers fails"
	same_model "$models/$model" "$model-part" 1e-4
	holds "$model: layers outside are in the new basis too" "changed == set(t[0])" "$models/$model" "$model-part"
	prune "$models/$model" "$model-local" --method wanda --pattern 0.1% --basis local || complain "$model: --basis local fails"
	same_model "$models/$model" "$model-local" 1e-4
	holds "$model: local leaves the rest alone" "set(t[0]) == set(t[1]) and c[0] == c[1] and \
not any('norm' in n or 'embed' in n for n in changed)" "$models/$model" "$model-local"
	prune "$models/$model" "$model-none" --method wanda --pattern 0% --basis full || complain "$model: 0% fails"
	same_model "$models/$model" "$model-none" 1e-4
	prune "$models/$model" "$model-only" --method wanda --pattern 2:4 --basis full --layers 1 || complain "$model: 2:4 of one layer"
	expect_json "all((t['sparsity'] == 0.5) == ('layers.1.' in t['name']) for t in d['tensors'] if t['operator'])" inspect "$model-only"
done

# every method and preset
for flags in "--method magnitude" "--method sparsegpt" "--method alps" "--method wanda --allocate 0.1" "--preset fast" "--preset paper --set iterations=4" \
	"--preset best --set fit_steps=4" "--preset fast --correction none" "--preset fast --check"; do
	rm -rf out
	# shellcheck disable=SC2086
	prune "$models/opt-demo" out --basis full $flags || complain "prune --basis full $flags fails"
	expect_json "1 < d['perplexity'] < 1000" eval out --text held-out.jsonl --sequence-length 64 --threads 1
done
rm -rf out

# what cannot be: text, memory, damage
expect 2 "--basis full.*--calibration FILE" prune good -o out --method magnitude --basis full
expect 2 "--basis local.*--calibration FILE" prune good -o out --method magnitude --basis local
expect 0 "" prune good -o plain --method magnitude --basis auto
expect 2 "one of" prune good -o out --basis half --calibration documents.jsonl
expect 3 "down_proj.weight.*contains NaN" prune nan-weights -o out --calibration documents.jsonl --samples 4 --sequence-length 32 --basis full
python3 - "$source/tests/cli" <<'PYTHON' || exit 1
import struct, sys
sys.path.insert(0, sys.argv[1])
from make_material import CONFIG, HIDDEN, VOCABULARY, model, safetensors, weights

good, untied = weights(), {**CONFIG, "tie_word_embeddings": False}
head = good["model.embed_tokens.weight"]
nan = struct.pack("<f", float("nan"))
model(".", "wrong-head", safetensors({**good, "lm_head.weight": ["F32", [HIDDEN, VOCABULARY], head[2]]}), untied)
model(".", "nan-head", safetensors({**good, "lm_head.weight": ["F32", head[1], nan + head[2][4:]]}), untied)
model(".", "nan-embedding", safetensors({**good, "model.embed_tokens.weight": ["F32", head[1], head[2][:-4] + nan]}))
norm = good["model.norm.weight"]
model(".", "nan-norm", safetensors({**good, "model.norm.weight": ["F32", norm[1], nan + norm[2][4:]]}))
zero = [norm[0], norm[1], b"\0\0\0\0" + norm[2][4:]]
model(".", "zero-norms", safetensors({**{n: zero if "norm" in n else t for n, t in good.items()}}))
# tied by its config, although the file has a head: of the embedding's bytes, as some converters write it, and others
model(".", "stored-head", safetensors({**good, "lm_head.weight": head}))
model(".", "stored-short-head", safetensors({**good, "lm_head.weight": ["F32", [VOCABULARY - 1, HIDDEN], head[2][:-4 * HIDDEN]]}))
count = VOCABULARY * HIDDEN
half = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", head[2]))
model(".", "stored-half-head", safetensors({**good, "lm_head.weight": ["F16", head[1], half]}))
PYTHON
tiny="--calibration documents.jsonl --samples 8 --sequence-length 32 --threads 1 --device cpu --method wanda --basis full --set basis_steps=20"
# shellcheck disable=SC2086
{
	expect 3 "lm_head.weight.*shape" prune wrong-head -o out $tiny
	expect 3 "lm_head.weight.*contains NaN" prune nan-head -o out $tiny
	expect 3 "embed_tokens.weight.*contains NaN" prune nan-embedding -o out $tiny
	expect 3 "model.norm.weight.*contains NaN" prune nan-norm -o out $tiny
	expect 4 "--memory 1M" prune "$models/llama-demo" -o out $tiny --memory 1M
	expect 3 "lm_head.weight.*type and shape of the embedding" prune stored-short-head -o out $tiny
	expect 0 "" prune stored-short-head -o unused $tiny --basis local # as without a basis, it is never read
	[ -e out ] || [ -e .out.partial ] && complain "a failed run left its output"
	expect 0 "basis: full" prune zero-norms -o zero $tiny --pattern 0.5%
	expect 0 "basis: full" prune stored-head -o stored $tiny
	holds "a stored head is written anew" "set(t[0]) == set(t[1]) and 'lm_head.weight' in changed and not c[1]['tie_word_embeddings']" \
		stored-head stored
	expect 0 "differs from the embedding" prune stored-half-head -o own $tiny # and counts; the output says so to programs that would tie it
	holds "a head that differs stays the head" "set(t[0]) == set(t[1]) and 'lm_head.weight' in changed and not c[1]['tie_word_embeddings']" \
		stored-half-head own
}
expect_json "d['kl'] < 1e-3" eval zero --text documents.jsonl --reference zero-norms --sequence-length 32 --threads 1 --device cpu

# auto: a head that adds too much is not added, and the log tells
expect 0 "basis: local; --basis full would prune better.*[0-9.]+ MiB more, [0-9]+% of the checkpoint" prune good -o small \
	--calibration documents.jsonl --samples 8 --sequence-length 32 --method wanda --basis auto
holds "auto with a large head" "'lm_head.weight' not in t[1] and c[0] == c[1]" good small
prune "$models/llama-demo" large --method wanda --basis auto || complain "--basis auto fails"
grep -q "basis: full" "$work/err" || complain "auto does not take full where the head is small"
expect_json "d['basis'] == 'full'" prune "$models/llama-demo" -o out --calibration "$text" --samples 8 --basis full --dry-run
expect_json "d['basis'] == 'local'" prune good -o out --calibration documents.jsonl --samples 8 --sequence-length 32 --basis auto --dry-run
expect_json "d['basis'] == 'none'" prune good -o out --calibration documents.jsonl --samples 8 --sequence-length 32 --basis none --dry-run
[ -e out ] && complain "--dry-run writes"
prune "$models/llama-demo" without --method wanda --pattern 2:4 --basis none
python3 -c "
import json
assert json.load(open('without/pruning_report.json'))['basis'] == {'kind': 'none'}" || complain "the report of no basis"

# compare: a row has the figures of prune and eval, whatever basis the rows before it had, except that embeddings and head
# are not rounded to the type of the checkpoint
flags="--samples $windows --sequence-length 64 --threads 1 --device cpu --set basis_steps=$steps"
# shellcheck disable=SC2086
"$program" compare "$models/opt-demo" --calibration "$text" --text held-out.jsonl $flags --methods wanda,magnitude \
	--patterns 50%,2:4 --basis full --work rows --json >"$work/out" 2>"$work/err" </dev/null || complain "compare --basis full fails"
cp "$work/out" rows.json
expect_json "[1 for r in json.load(open('rows.json'))['rows'] if r['method'] == 'wanda' and r['pattern'] == '2:4' and \
abs(r['perplexity'] / d['perplexity'] - 1) < 1e-3 and abs(r['kl'] / d['kl'] - 1) < 1e-3]" eval opt-demo-full --text held-out.jsonl \
	--reference "$models/opt-demo" --sequence-length 64 --threads 1 --device cpu
finish
