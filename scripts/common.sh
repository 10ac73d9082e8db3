# shellcheck shell=bash disable=SC2034 # the recipes take what is set here
# What run_gpt2_124M.sh and its siblings share. They source this file in the root of the repository, and so do the
# scripts of multi_node/. It needs bash 4.4.
#
#   STEPS=1000 scripts/run_gpt2_124M.sh -b 16    settings stand before the name, the trainer's options behind
#
# Settings in the environment, besides those at the head of a recipe:
#
#   SMOKE=1      everything in small, on the CPU
#   PLAN=1       prints the trainer's plan and the whole command, and stops
#   MAX_STARTS   starts in all, with those after failures (20)
#   PAUSE        seconds before the next start; they double up to 300 (10)
#   GPUS         how many to use (all of this machine); for multi_node/: of each machine
#   LAUNCH       the words before the trainer, which start a process for each GPU (mpirun -np ...)
SETTINGS="SMOKE PLAN OUT_DIR DATA_DIR STEPS SHARDS GPUS TRAINER MAX_STARTS PAUSE LAUNCH RECIPE HOSTS PORT"
export LC_ALL=C
name=${0##*/} program=${program:-train_gpt2} launch=()
say() { echo "$(date +%H:%M:%S) $*"; }
stop() { echo "$name: $*" >&2 && exit 1; }

# Refuses a name one letter from a setting's, or with two letters exchanged. HOST, CPUS and PLAN9 are names of others.
check_names() {
    local setting near found i
    for setting in $SETTINGS; do
        near="$setting."
        for ((i = 0; i < ${#setting}; i++)); do
            near+="|${setting:0:i}.?${setting:i+1}|${setting:0:i}.${setting:i}"
            near+="|${setting:0:i}${setting:i+1:1}${setting:i:1}${setting:i+2}"
        done
        found=$(compgen -e | grep -xE "$near" | grep -vxE "${SETTINGS// /|}|HOST|CPUS|PLAN9" | head -n 1) || true
        [ -z "$found" ] || stop "$found: no such setting; the nearest is $setting (--help lists all)"
    done
}

check_number() { # NAME LEAST MOST
    [[ ${!1} =~ ^(0|[1-9][0-9]{0,8})$ && ${!1} -ge $2 && ${!1} -le $3 ]] ||
        stop "$1 is '${!1}', expected a whole number from $2 to $3"
}

if [ "${1:-}" = --help ]; then
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p; s/^: "${\([A-Z_]*\):=\(.*\)}" *# /  \1=\2   /p' "$0"
    sed -n 's/^#   /  /p' scripts/common.sh && exit 0
fi
check_names
: "${SMOKE:=0}" "${PLAN:=0}" "${MAX_STARTS:=20}"
check_number SMOKE 0 1 && check_number PLAN 0 1
: "${PAUSE:=$((SMOKE ? 0 : 10))}"
check_number MAX_STARTS 1 99999 && check_number PAUSE 0 999
MPI_OPTIONS="--bind-to none"                               # processes may use all cores: they read data in threads
[ "$(id -u)" != 0 ] || MPI_OPTIONS+=" --allow-run-as-root" # as in most containers
SMALL=()
if [ "$SMOKE" = 1 ]; then # a tiny model, a tiny text, few steps; keep_training lets one process die
    : "${OUT_DIR:=run_smoke_$(basename "${name#run_}" .sh)}" "${DATA_DIR:=$OUT_DIR/data}" "${STEPS:=4}" "${SHARDS:=2}"
    : "${GPUS:=2}" "${TRAINER:=./${program}emu}"
    SMALL=(--layers 1 --heads 1 --channels 16 --context 16 --seq-len 16 --total-batch 32 --warmup 2
        --val-every 1000 --val-sequences 2 --eval-examples 1 --sample-every 0 --checkpoint-every 2 --keep-major 4)
    MPI_OPTIONS+=" --oversubscribe"
    export EMU_CHECK=0 EMU_THREADS=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive EMU_NCCL_FAULT=die@1:22
fi

count_gpus() {
    [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || { tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . && return; }
    nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || stop "no GPU by nvidia-smi -L; GPUS=8 plans for 8; SMOKE=1 runs all"
}

check_nodes() { # for the scripts of multi_node/: RECIPE, HOSTS and the GPUs of each
    [ -x "$RECIPE" ] || stop "RECIPE: $RECIPE: no such script; expected scripts/run_gpt2_124M.sh or one beside it"
    GPUS=${GPUS:-$(count_gpus)}
    check_number GPUS 1 65536
    read -r -a hosts <<<"${HOSTS:-localhost}"
}

# ---- Before the training ----
# begin OPTION...: checks settings and options, sets launch, and locks OUT_DIR. What a start has left running holds the
# lock, too.
begin() {
    local word
    GPUS=${GPUS:-$(count_gpus)}
    for word in "$@"; do
        [[ ! $word =~ ^(--steps|-x|--out-dir|-o|--plan)(=|$) ]] ||
            stop "$word: set STEPS, OUT_DIR or PLAN=1 in the environment instead"
    done
    check_number STEPS 1 999999999 && check_number GPUS 1 65536
    [ "$GPUS" = 1 ] || : "${LAUNCH=mpirun -np $GPUS $MPI_OPTIONS}"
    read -r -a launch <<<"${LAUNCH:-}"
    { mkdir -p "$OUT_DIR" && exec 9>>"$OUT_DIR/recipe.lock"; } 2>/dev/null || stop "OUT_DIR: $OUT_DIR: not writable"
    flock -n 9 || stop "$OUT_DIR: another start of a recipe still works here; wait for its end, or set another OUT_DIR"
    [ "$SMOKE" = 0 ] || say "SMOKE=1: a tiny model, a made-up text; numbers mean nothing, and one process is killed"
}

build() { # the trainer, unless TRAINER is a path of its own
    [[ $TRAINER != ./$program* ]] || make -s "${TRAINER#./}" ||
        stop "the build failed; \`make doctor\` says what is missing"
    [ -x "$TRAINER" ] || stop "TRAINER: $TRAINER: no such program; without TRAINER, one is built"
    [[ ${LAUNCH:-} != mpirun* ]] || command -v mpirun >/dev/null ||
        stop "mpirun: no such program; install Open MPI, or start scripts/multi_node/run_tcp.sh, which needs none"
    [[ $TRAINER != ./${program}cu || $GPUS = 1 ]] || grep -q libnccl "$TRAINER" ||
        stop "$TRAINER: was built without NCCL, which several GPUs need; install libnccl-dev, or set GPUS=1"
}

# plan COMMAND...: the trainer's plan, which finds wrong options before hours go into fetching data. The options that
# name data are left out, because the data may not be here yet.
plan() {
    local text options=() command=("$@")
    while [ $# -gt 0 ]; do
        case ${1%%=*} in
            "$TRAINER") options=(--plan --num-processes "$GPUS") ;; # what was before it is the launcher's
            --hellaswag | -h) [[ $1 = *=* || ${2:-} != [01] ]] || shift ;; # it may stand without a value
            --train-data | -i | --val-data | -j | --tokenizer | --hellaswag-* | --mmlu | --eval-* | --prompt*)
                [[ $1 = *=* ]] || shift ;;
            *) options+=("$1") ;;
        esac
        shift
    done
    text=$("$TRAINER" "${options[@]}" 2>&1) || stop "the trainer refuses the options: $(tail -n 1 <<<"$text")"
    echo "$text"
    ! grep -q '^fits *no' <<<"$text" || stop "the run does not fit into the GPUs' memory, as the last line above says"
    [ "$PLAN" = 1 ] || return 0
    printf '%q ' "${command[@]}" | sed 's/ --/ \\\n    --/g' && echo && exit 0
}

once() { # FOLDER COMMAND...: COMMAND FOLDER, unless FOLDER is there; it gets its name when it is complete
    [ ! -e "$1" ] || return 0
    rm -rf "$1.part"
    "${@:2}" "$1.part" && mv "$1.part" "$1"
}

fetch() { # COUNT FILES PROGRAM OPTION...: a program of dev/data, unless so many FILES are there
    [ "$(compgen -G "$2" | wc -l)" -lt "$1" ] || return 0
    if [ "$SMOKE" = 1 ]; then stand_in "$2" "$3"; else python3 "dev/data/$3" "${@:4}"; fi ||
        stop "the data did not come; what has come stays, and the same command goes on with it"
}

stand_in() { # FILES PROGRAM: small files in the place of those that the program fetches
    local made=$DATA_DIR/made encode="./tokenize --overwrite --tokenizer" tokenizer
    tokenizer=$(compgen -G "$DATA_DIR/*_tokenizer.bin" | head -n 1)
    local question='{"context": "ab", "completions": [" c", " d", " e", " f"], "label": 1}'
    mkdir -p "$made" "${1%/*}" && { [ -x tokenize ] || make -s tokenize; } || return 1
    case $2 in
        vocab.py)
            printf '%s\n' 'h e' 't he' 'i n' >"$made/merges.txt"
            python3 dev/data/vocab.py --merges "$made/merges.txt" --out "$made" && cp "$made/gpt2_tokenizer.bin" "$1"
            ;;
        hellaswag.py) $encode "$tokenizer" --eval -o "${1%_val.bin}" - <<<"$question" ;;
        fineweb.py) $encode "$tokenizer" --val-tokens 3000 --shard-size 8000 -o "${1%_\*.bin}" README.md ;;
    esac
}

# ---- Training ----
signals=0 stopped_by="" child="" told="" began=0
on_signal() { # NAME. A closing terminal may send SIGHUP twice
    [ "$signals" = 0 ] || [ "$1" != HUP ] || return 0
    signals=$((signals + 1)) stopped_by=${stopped_by:-$1}
    say "SIG$1: $([ $signals = 1 ] && echo "saving; once more: ending at once" || echo "ending at once")"
    [ -z "$child" ] || tell_child
}

tell_child() { # the first time SIGUSR1, which mpirun and srun hand on: the trainer saves and ends; then SIGTERM
    [ $((SECONDS - began)) -ge 2 ] || sleep 1 # a child that was just forked would lose it
    told=$child
    kill -s "$([ $signals = 1 ] && echo USR1 || echo TERM)" "$child" 2>/dev/null || true
}

wait_for() { # PID: sets status to how it has ended. A trap ends bash's wait before that.
    local before=-1
    while [ "$signals" != "$before" ]; do
        before=$signals status=0
        wait "$1" 2>/dev/null || status=$?
    done
}

# run_child COMMAND...: sets status, and ends the script after a signal. The child has a group of its own, which Ctrl-C
# does not reach: mpirun would kill what is still saving.
run_child() {
    began=$SECONDS
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    [ $signals = 0 ] || [ "$told" = "$child" ] || tell_child # it came before the child did
    wait_for "$child"
    child=""
    [ $signals != 0 ] || return 0
    say "stopped by SIG$stopped_by at step $(newest_step) of $STEPS; the same command goes on"
    exit $((status != 0 ? status : 128 + $(kill -l "$stopped_by")))
}

# With inode and time: a checkpoint saved under the name of an old one is new, too.
checkpoints() { ls -li "$OUT_DIR"/state_[0-9]*.bin 2>/dev/null || true; }
newest_step() { echo $((10#0$(checkpoints | sed 's/.*state_\(.*\)\.bin$/\1/' | sort -n | tail -n 1))); }

complete() { # the last step is saved, validated, and has its HellaSwag, where the log has such lines
    local kind at
    for kind in tel eval; do
        at=$(sed -n "s/^s:\([0-9]*\) $kind:.*/\1/p" "$OUT_DIR/main.log" 2>/dev/null | tail -n 1)
        [ "${at:-$STEPS}" -ge "$STEPS" ] || return 1
    done
    [ "$(newest_step)" -ge "$STEPS" ]
}

# keep_training COMMAND...: from the last checkpoint, again and again until the run is complete. It gives up after two
# starts in a row without a new checkpoint, because that is no accident, and after MAX_STARTS.
keep_training() {
    local start saved failures=0
    trap 'on_signal HUP' HUP && trap 'on_signal INT' INT && trap 'on_signal TERM' TERM && trap 'on_signal USR1' USR1
    for ((start = 1; ; start++)); do
        ! complete || break
        [ "$start" -le "$MAX_STARTS" ] || stop "given up after $MAX_STARTS starts (MAX_STARTS)"
        [ "$start" = 1 ] || run_child sleep "$PAUSE"
        saved=$(checkpoints)
        say "start $start of $MAX_STARTS, from step $(newest_step) of $STEPS; Ctrl-C saves and ends"
        run_child "$@" --resume
        [ "$status" != 0 ] || [ "$(newest_step)" -ge "$STEPS" ] || stop "the training was told to end"
        failures=$((failures + 1))
        [ "$(checkpoints)" = "$saved" ] || failures=0
        say "status $status after $((SECONDS - began)) s, at step $(newest_step) of $STEPS"
        [ $failures -lt 2 ] || stop "given up: two starts in a row saved nothing in $OUT_DIR; the lines above say why"
        [ "$start" = 1 ] || PAUSE=$((PAUSE < 150 ? 2 * PAUSE : 300))
        unset EMU_NCCL_FAULT
    done
    trap - HUP INT TERM USR1
}

# ---- After the training ----
try() { "$@" || say "left out, as the lines above say; when that is mended, the same command makes it"; }
# The last value of a kind of line in main.log: tel, the validation loss; eval, HellaSwag.
last() { sed -n "s/^s:[0-9]* $1:\([-0-9.a-z]*\)$/\1/p" "$OUT_DIR/main.log" | tail -n 1; }

finish() { # WHAT TO EXPECT: exports the model for Hugging Face, draws the curves, and says the result
    try once "$OUT_DIR/hf" python3 dev/hf.py export "$OUT_DIR/model_$(printf %08d "$STEPS").bin"
    try python3 dev/plot.py "$OUT_DIR" -o "$OUT_DIR/curves.png"
    say "$OUT_DIR: step $STEPS: validation loss $(last tel), HellaSwag $(last eval) ($1)"
}
