#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Malicious models are refused within seconds: exit code 3, a message that names the file and the
# rule, and nothing is written anywhere but under the name that -o gives. All runs but those of a
# sanitized build have 800 MB of address space.
. "$2/tests/cli/common.sh"
export OMP_NUM_THREADS=1
PYTHONDONTWRITEBYTECODE=1 python3 "$source/tests/cli/make_hostile.py" "$work/hostile" || exit 1
cd "$work/hostile" || exit 1
mkdir "$work/watched" "$work/watched/inner"

limit="ulimit -v 800000"
(
	$limit
	"$program" --version >/dev/null 2>&1
) || limit=true # a sanitized build starts with more

# A file that does not fit into the address space is a case of its own.
if part huge_file; then
	[ "$limit" != true ] || skip "this build does not start within 800 MB of address space"
	sed -i '/^sparse/!d' cases
	at_least=1
else
	sed -i '/^sparse/d' cases
	at_least=100
fi

listing() { # all files with size and time of change, without the directory in which the output is created
	find "$work/hostile" "$work/material" "$work/watched" ! -path "$work/watched/inner" -printf '%p %s %T@ %l\n' | sort
}
prune="--calibration $work/material/plain.txt --samples 2 --sequence-length 16 --method wanda --device cpu --threads 1 --quiet"
listing >"$work/before"

# try MODEL CODE PATTERN ARGUMENT...
try() {
	model=$1
	wanted=$2
	pattern=$3
	shift 3
	(
		$limit
		exec timeout 60 "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
	)
	result=$?
	[ "$result" -eq "$wanted" ] || complain "'$*' gave exit code $result, wanted $wanted"
	tr '\n' ' ' <"$work/err" | grep -Eqi -e "$pattern" || complain "'$*' does not say '$pattern'"
	grep -q "$model" "$work/err" || complain "'$*' does not name the model"
	[ -s "$work/out" ] && complain "'$*' failed and still printed a result"
}

tab=$(printf '\t')
count=0
while IFS="$tab" read -r model commands code pattern; do
	count=$((count + 1))
	case $commands in *i*) try "$model" "$code" "$pattern" inspect "$model" ;; esac
	case $commands in
	*p*)
		# shellcheck disable=SC2086 # words on purpose
		try "$model" "$code" "$pattern" prune "$model" -o "$work/watched/inner/pruned" $prune
		;;
	esac
done <cases
[ $count -ge $at_least ] || complain "only $count cases"
listing | diff "$work/before" - >"$work/out" || complain "something was written: $(head -5 "$work/out")"
echo "$count hostile models"
! part huge_file || finish

# Links of a model that lead elsewhere are read, never written through; a link in the place of the
# working folder is refused.
cp -r "$work/material/good" linked
mkdir "$work/elsewhere" "$work/elsewhere/templates"
echo '{"kept": true}' >"$work/elsewhere/generation_config.json"
echo 'kept' >"$work/elsewhere/templates/one.jinja"
ln -s "$work/elsewhere/generation_config.json" linked/generation_config.json
ln -s "$work/elsewhere/templates" linked/additional_chat_templates
mv linked/model.safetensors "$work/elsewhere/model.safetensors"
ln -s "$work/elsewhere/model.safetensors" linked/model.safetensors
before=$(find "$work/elsewhere" -type f -exec cksum {} + | sort)
ln -s "$work/elsewhere" "$work/watched/inner/.pruned.partial"
# shellcheck disable=SC2086
{
	expect 1 "is not a folder of this user" prune linked -o "$work/watched/inner/pruned" $prune
	rm "$work/watched/inner/.pruned.partial"
	expect_output "zeros" prune linked -o "$work/watched/inner/pruned" $prune
}
[ "$before" = "$(find "$work/elsewhere" -type f -exec cksum {} + | sort)" ] || complain "a link was written through"
[ -z "$(find "$work/watched/inner/pruned" -type l)" ] || complain "the output holds links"
grep -q kept "$work/watched/inner/pruned/additional_chat_templates/one.jinja" || complain "a template is missing"
[ "$(ls -A "$work/watched/inner")" = pruned ] || complain "more than the output was written: $(ls -A "$work/watched/inner")"
finish
