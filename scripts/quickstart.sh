#!/usr/bin/env bash
# Builds the trainer and trains a small GPT for about a minute, then shows what it has learned.
#
#   scripts/quickstart.sh               learns this repository's own sources and documentation
#   scripts/quickstart.sh book.txt      learns your text (plain text, any language; some 100 kB or more is good)
#
# Needs a C compiler and make; on Debian and Ubuntu it installs them if they are missing. Nothing else is downloaded.
# Everything it writes lies in build/ and in a new folder run_quickstart* of the repository. Its setting, in the
# environment: TRAIN_SECONDS=20 trains for a shorter or longer time. ./train_gpt2 takes all other options.
set -eu -o pipefail
export LC_ALL=C

# A model of bytes that learns fast: 0.8 million parameters, and small batches, since at this scale many updates matter
# more than exact ones.
MODEL=(--layers 4 --heads 4 --channels 128 --context 64 --seq-len 64 --batch-size 8)
RECIPE=(--lr 3e-3 --schedule cosine --final-lr-frac 0.1 --weight-decay 0.1 --sample-every 0)
MIN_BYTES=4096 # less text leaves nothing to validate with

stop() { echo "quickstart.sh: $*" >&2 && exit 1; }

# A trainer that a signal has stopped ends with status 0, on which this script would go on.
trap 'stop "stopped; the same command begins anew"' INT TERM

# --- the text: checked before anything is built ----------------------------------------------------------------------
case ${1:-} in -h | --help) sed -n '2,/^set -eu/ s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
[ $# -le 1 ] || stop "one text file at a time, $# words given (a name with spaces needs quotes)"
train_seconds=${TRAIN_SECONDS:-60}
[[ $train_seconds =~ ^[1-9][0-9]{0,3}$ ]] ||
    stop "TRAIN_SECONDS is '$train_seconds', expected whole seconds, 1 to 9999"

from=$PWD && cd "$(dirname "$0")/.."
. scripts/packages.sh
mkdir -p build
run=run_quickstart
for ((number = 2; ; number++)); do
    [ -e "$run" ] || break
    run=run_quickstart_$number
done
corpus=build/$run.txt

own_files() { # the trainer itself last: the last tenth is kept for validation
    find . \( -path ./build -o -path './run*' \) -prune -o \( -name '*.md' -o -name '*.sh' -o -name '*.py' \
        -o -name '*.[ch]' -o -name Makefile \) -not -name unicode_tables.h -print | sort
}

if [ $# -eq 1 ]; then
    source_name=$1
    (cd "$from" && cat -- "$1") 2>/dev/null >"$corpus" ||
        stop "$1: cannot be copied to $PWD/$corpus; give a plain text file, or nothing (--help)"
else
    # Without the blanks that push the \ of long macros to the right: a model of bytes would learn to write blanks.
    own_files | tr '\n' '\0' | xargs -0 sed 's/ *\\$/ \\/' >"$corpus"
    source_name="the sources and documentation of this repository"
fi
bytes=$(($(wc -c <"$corpus")))
[ "$bytes" -ge "$MIN_BYTES" ] || stop "$source_name: has $bytes bytes; give a text of at least $MIN_BYTES"

# --- the program -----------------------------------------------------------------------------------------------------
need=()
links gcc || links clang || links cc || need=(gcc libc6-dev)
have make || need+=(make)
[ ${#need[@]} = 0 ] || install_packages "a C compiler and make build the trainer" "${need[@]}" || exit 1

# try LOG COMMAND...: what it says goes to the log, whose end is shown if it fails.
try() {
    "${@:2}" </dev/null >"$1" 2>&1 || { tail -n 20 "$1" >&2 && stop "$2 failed; the whole output is in $PWD/$1"; }
}
echo "Building train_gpt2 ..."
try build/quickstart_build.log make train_gpt2

# --- training: as many steps as fit into the time --------------------------------------------------------------------
timing=build/quickstart_timing.log
train=(./train_gpt2 --train-data "$corpus" "${MODEL[@]}" "${RECIPE[@]}")
try $timing "${train[@]}" --steps 30 --val-every 0
milliseconds=$(grep -o '[0-9.]* ms' $timing | sort -n | awk '{ time[NR] = $1 } END { print time[int((NR + 1) / 2)] }')
[ -n "$milliseconds" ] || stop "no step times in $PWD/$timing"
steps=$(awk -v ms="$milliseconds" -v s="$train_seconds" 'BEGIN { print int(1000 * s / ms) }')
steps=$((steps < 100 ? 100 : steps > 6000 ? 6000 : steps)) # more only repeats a small text
echo "Training on $source_name ($bytes bytes): $steps steps of $milliseconds ms"
echo
status=0 interrupted=no
trap 'interrupted=yes' INT TERM # the trainer saves and ends by itself
"${train[@]}" --steps "$steps" --warmup $((steps / 8)) --shuffle --val-every $(((steps + 3) / 4)) --val-sequences 400 \
    --log-every $((steps / 20)) --out-dir "$run" </dev/null || status=$?
if [ $interrupted = yes ]; then
    printf '\nStopped. To go on from here: cd %s &&\n    ./train_gpt2 --resume --out-dir %s\n' "$PWD" "$run"
    exit 130
fi
[ $status -eq 0 ] || stop "the training ended with status $status; what it left is in $PWD/$run"

# --- what came of it: the training loss as text, its mean over each twelfth of the steps, eight signs for one nat ----
awk -F '[: ]' '
    $3 == "tel" { after = $4; if (before == "") before = $4 }
    $3 == "trl" { loss[$2] = $4; if ($2 >= steps) steps = $2 + 1 }
    END {
        printf "\nValidation loss: %s before, %s after training (nats per byte, on the part of the text that it was " \
            "not trained on)\n\n", before, after
        for (row = 0; row < 12; row++) {
            end = int((row + 1) * steps / 12)
            sum = n = 0
            for (i = int(row * steps / 12); i < end; i++) { sum += loss[i]; n++ }
            bar = sprintf("%" int(8 * sum / n) "s", "")
            gsub(" ", "#", bar)
            printf "    step %5d  loss %.3f  %s\n", end, sum / n, bar
        }
    }' "$run/main.log"
python3 dev/plot.py "$run" -o "$run/loss.png" >build/quickstart_plot.log 2>&1 ||
    echo "With matplotlib (python3 -m pip install matplotlib), python3 dev/plot.py $run -o $run/loss.png draws it."
printf '\nWhat it writes now:\n\n'
sample=(./train_gpt2 --init "$run" --steps 0 --sample-tokens 800 --temperature 0.7)
"${sample[@]}" </dev/null 2>build/quickstart_sample.log || stop "no sample: $(tail -n 1 build/quickstart_sample.log)"
cat <<END

In $PWD/$run: main.log (the losses, a line per step), speed.log (the time of each step), run.jsonl (what was run, on
what), the model, its tokenizer and the checkpoints (*.bin).
Another sample:  ${sample[*]} --seed 2
All options:     ./train_gpt2 --help all
END
