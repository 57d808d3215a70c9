#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# soak.sh PROGRAM SOURCE_FOLDER SECONDS: prune, inspect and eval in a loop over methods and patterns
# until the time is over. With AddressSanitizer a leak ends it. The peak memory of equal runs must
# not grow.
set -u
program=$1
source=$2
seconds=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
end=$(($(date +%s) + seconds))
rounds=0
while [ "$(date +%s)" -lt "$end" ]; do
	for model in llama-demo opt-demo; do
		for method in "--method magnitude" "--method wanda" "--method sparsegpt" "--method admm" "--preset paper" \
			"--preset fast" "--preset fast --correction intra" "--preset best --set fit_steps=8"; do
			for pattern in 50% 70% 2:4 4:8 1:8; do
				[ "$(date +%s)" -lt "$end" ] || break 3
				rm -rf "$work/out"
				# shellcheck disable=SC2086 # the method is words
				"$program" prune "$source/models/$model" -o "$work/out" --calibration "$source/models/calibration.jsonl" \
					--samples 8 --sequence-length 64 --threads 1 --device cpu --pattern $pattern $method --json -q \
					>"$work/prune.json" 2>"$work/err" &&
					"$program" inspect "$work/out" --pattern $pattern --json >/dev/null 2>"$work/err" &&
					"$program" eval "$work/out" --text "$source/models/evaluation.jsonl" --sequence-length 64 --threads 1 \
						--device cpu --json -q >"$work/eval.json" 2>"$work/err" || {
					echo "FAILED: $model $method $pattern"
					cat "$work/err"
					exit 1
				}
				python3 - "$work/prune.json" "$work/peaks" "$model $method $pattern" <<'END' || exit 1
import json, sys
peak, key = json.load(open(sys.argv[1]))["peak_memory_bytes"], sys.argv[3]
try:
    peaks = json.load(open(sys.argv[2]))
except FileNotFoundError:
    peaks = {}
if peak > 1.1 * peaks.setdefault(key, peak):
    sys.exit(f"FAILED: {key}: {peak} bytes at most, {peaks[key]} the first time")
json.dump(peaks, open(sys.argv[2], "w"))
END
				rounds=$((rounds + 1))
			done
		done
	done
done
echo "$rounds prunes, inspections and evaluations; nothing failed, nothing grew"
