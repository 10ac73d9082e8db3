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
RECIPE=(--lr 3e-3 --schedule cosine --final-lr-frac 0.1 --weight-decay 0.1)
MIN_BYTES=4096 # less text leaves nothing to validate with
MIN_STEPS=100
MAX_STEPS=6000 # more only repeats a small text
TIMING_STEPS=30

stop() { # message...: ends the script
    echo "quickstart.sh: $*" >&2
    exit 1
}

usage() { sed -n '2,/^set -eu/ s/^# \{0,1\}//p' "$0"; }

# Shows the training loss as text: its mean over each twelfth of the steps, eight signs for one nat.
curve() { # main.log
    awk -F '[: ]' '
        $3 == "trl" { loss[$2] = $4; if ($2 >= steps) steps = $2 + 1 }
        END {
            for (row = 0; row < 12; row++) {
                begin = int(row * steps / 12)
                end = int((row + 1) * steps / 12)
                sum = 0
                for (i = begin; i < end; i++) sum += loss[i]
                bar = sprintf("%" int(8 * sum / (end - begin)) "s", "")
                gsub(" ", "#", bar)
                printf "    step %5d  loss %.3f  %s\n", end, sum / (end - begin), bar
            }
        }' "$1"
}

# A trainer that a signal has stopped ends with status 0, on which this script would go on.
halt() { # status
    echo "quickstart.sh: stopped; the same command begins anew" >&2
    exit "$1"
}
trap 'halt 130' INT
trap 'halt 143' TERM

case ${1:-} in -h | --help) usage; exit 0 ;; esac
for word in "$@"; do
    case $word in -?*) stop "unknown option $word; give the name of a text file, or nothing (--help)" ;; esac
done
[ $# -le 1 ] || stop "one text file at a time, $# words given (a name with spaces needs quotes)"
train_seconds=${TRAIN_SECONDS:-60}
case $train_seconds in
    '' | 0* | *[!0-9]* | ?????*) stop "TRAIN_SECONDS is '$train_seconds', expected whole seconds, 1 to 9999" ;;
esac

# --- the text: checked before anything is built ----------------------------------------------------------------------
text=${1:-}
if [ $# -eq 1 ]; then
    [ -n "$text" ] || stop "the name of the text file is empty"
    [ -e "$text" ] || stop "$text: no such file; give a plain text file"
    [ ! -d "$text" ] || stop "$text: is a folder; give a plain text file"
    [ -r "$text" ] || stop "$text: cannot be read; check its permissions"
    case $text in /*) ;; *) text=$PWD/$text ;; esac
fi

cd "$(dirname "$0")/.."
. scripts/packages.sh
[ -w . ] || stop "$PWD: cannot be written to; copy the repository to a folder of your own"
mkdir -p build
run=run_quickstart
number=1
while [ -e "$run" ]; do
    number=$((number + 1))
    run=run_quickstart_$number
done
corpus=build/$run.txt

# Documentation first, the trainer itself last: the last tenth is kept for validation.
own_files() {
    find . -name '*.md' -not -path './build/*' -not -path './run*' | sort
    find scripts dev llmc \( -name '*.sh' -o -name '*.py' -o -name '*.c' -o -name '*.h' \) \
        -not -name unicode_tables.h | sort
    echo Makefile
    find . -maxdepth 1 \( -name '*.py' -o -name '*.c' \) | sort
}

if [ -n "$text" ]; then
    cat "$text" >"$corpus" || stop "$text: could not be copied to $corpus (disk full?)"
    source_name=$1
else
    # Without the blanks that push the \ of long macros to the right: a model of bytes would learn to write blanks.
    own_files | tr '\n' '\0' | xargs -0 sed 's/ *\\$/ \\/' >"$corpus"
    source_name="the sources and documentation of this repository"
fi
bytes=$(($(wc -c <"$corpus")))
[ "$bytes" -gt 0 ] || stop "$source_name: is empty; give a text of at least $MIN_BYTES bytes"
[ "$bytes" -ge "$MIN_BYTES" ] || stop "$source_name: has $bytes bytes; give a text of at least $MIN_BYTES"

# --- the program -----------------------------------------------------------------------------------------------------
need=()
{ have gcc && links gcc; } || { have clang && links clang; } || { have cc && links cc; } || need=(gcc libc6-dev)
have make || need+=(make)
if [ ${#need[@]} -gt 0 ]; then
    install_packages "a C compiler and make build the trainer" "${need[@]}" || exit 1
fi
echo "Building train_gpt2 ..."
if ! make train_gpt2 >build/quickstart_build.log 2>&1; then
    tail -n 20 build/quickstart_build.log >&2
    stop "the build failed; the whole output is in $PWD/build/quickstart_build.log"
fi

# --- how many steps fit into the time --------------------------------------------------------------------------------
timing=build/quickstart_timing.log
if ! ./train_gpt2 --train-data "$corpus" "${MODEL[@]}" "${RECIPE[@]}" --steps $TIMING_STEPS --val-every 0 \
    --sample-every 0 </dev/null >"$timing" 2>&1; then
    tail -n 3 "$timing" >&2
    stop "the trainer stopped; the whole output is in $PWD/$timing"
fi
milliseconds=$(grep -o '[0-9.]* ms' "$timing" | sort -n | awk '{ time[NR] = $1 } END { print time[int((NR + 1) / 2)] }')
[ -n "$milliseconds" ] || stop "no step times in $PWD/$timing"
steps=$(awk -v ms="$milliseconds" -v s="$train_seconds" -v min=$MIN_STEPS -v max=$MAX_STEPS \
    'BEGIN { n = int(1000 * s / ms); if (n < min) n = min; if (n > max) n = max; print n }')

# --- training --------------------------------------------------------------------------------------------------------
echo "Training on $source_name ($bytes bytes): $steps steps of $milliseconds ms"
echo
interrupted=no
trap 'interrupted=yes' INT TERM # the trainer saves and ends by itself
train=(./train_gpt2 --train-data "$corpus" "${MODEL[@]}" "${RECIPE[@]}" --steps "$steps" --warmup $((steps / 8))
    --shuffle --val-every $(((steps + 3) / 4)) --val-sequences 400 --sample-every 0 --log-every $((steps / 20))
    --out-dir "$run")
status=0
"${train[@]}" </dev/null || status=$?
if [ $interrupted = yes ]; then
    echo
    echo "Stopped. To go on from here: cd $PWD &&"
    echo "    ./train_gpt2 --resume --out-dir $run"
    exit 130
fi
trap 'halt 130' INT
trap 'halt 143' TERM
[ $status -eq 0 ] || stop "the training ended with status $status; what it left is in $PWD/$run"

# --- what came of it -------------------------------------------------------------------------------------------------
before=$(sed -n 's/^s:[0-9]* tel://p' "$run/main.log" | head -n 1)
after=$(sed -n 's/^s:[0-9]* tel://p' "$run/main.log" | tail -n 1)
echo
echo "Validation loss: $before before, $after after training (nats per byte, on" \
    "the part of the text that it was not trained on)"
echo
curve "$run/main.log"
if ! python3 -c 'import matplotlib' 2>/dev/null; then
    echo "With matplotlib (python3 -m pip install matplotlib), python3 dev/plot.py $run -o $run/loss.png draws it."
elif ! python3 dev/plot.py "$run" -o "$run/loss.png" >build/quickstart_plot.log 2>&1; then
    echo "The curve was not drawn: $(tail -n 1 build/quickstart_plot.log)"
fi
echo
echo "What it writes now:"
echo
sample=(./train_gpt2 --init "$run" --steps 0 --sample-tokens 800 --temperature 0.7)
"${sample[@]}" </dev/null 2>build/quickstart_sample.log || stop "no sample: $(tail -n 1 build/quickstart_sample.log)"
echo
echo "In $PWD:"
for file in "$run"/*; do
    case $file in
        */tokenizer.bin) printf '    %-36s %s\n' "$file" "a copy of the tokenizer" ;;
        */model_best.bin) printf '    %-36s %s\n' "$file" "the model of the lowest validation loss" ;;
        *.bin) printf '    %-36s %s\n' "$file" "checkpoint" ;;
        */main.log) printf '    %-36s %s\n' "$file" "losses, a line per step" ;;
        */speed.log) printf '    %-36s %s\n' "$file" "the time of each step" ;;
        */run.jsonl) printf '    %-36s %s\n' "$file" "what was run, on what" ;;
        *.png) printf '    %-36s %s\n' "$file" "the loss curve" ;;
    esac
done
echo
echo "Another sample:  ${sample[*]} --seed 2"
echo "All options:     ./train_gpt2 --help all"
