# shellcheck shell=bash disable=SC2034 # the recipes take what is set here
# What run_gpt2_124M.sh and its siblings share. They source this file in the root of the repository, and so do the
# scripts of multi_node/. It needs bash 4.4.
#
#   STEPS=1000 scripts/run_gpt2_124M.sh -b 16    settings stand before the name, the trainer's options behind
#   Ctrl-C saves and ends. The same command goes on, whatever stopped it.
#
# Settings in the environment, besides those of a recipe:
#
#   OUT_DIR      the run's folder, for checkpoints, logs and curves (the recipe's name)
#   DATA_DIR     the folder of the data (dev/data)
#   TRAINER      built with make (./train_gpt2cu, ./train_llama3cu); another path is taken as it is
#   SMOKE=1      everything in small, on the CPU
#   PLAN=1       prints the trainer's plan and the whole command, and stops
#   MAX_STARTS   starts in all, with those after failures (20)
#   PAUSE        seconds before the next start; they double up to 300 (10)
#   GPUS         how many to use (all of this machine); for multi_node/: of each machine
#   LAUNCH       the words before the trainer, which start a process for each GPU (mpirun -np ...)
export LC_ALL=C
name=${0##*/} program=train_gpt2 launch=() best=""
[[ $name != *llama* ]] || program=train_llama3
say() { echo "$(date +%H:%M:%S) $*"; }
stop() { echo "$name: $*" >&2 && exit 1; }

check_number() { # NAME LEAST MOST
    [[ ${!1} =~ ^(0|[1-9][0-9]{0,8})$ && ${!1} -ge $2 && ${!1} -le $3 ]] ||
        stop "$1 is '${!1}', expected a whole number from $2 to $3"
}

if [ "${1:-}" = --help ]; then
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p; s/^: "${\([A-Z_]*\):=\(.*\)}" *# /  \1=\2   /p' "$0"
    sed -n 's/^#   /  /p' scripts/common.sh && exit 0
fi
: "${SMOKE:=0}" "${PLAN:=0}" "${MAX_STARTS:=20}"
check_number SMOKE 0 1 && check_number PLAN 0 1
: "${PAUSE:=$((SMOKE ? 0 : 10))}"
check_number MAX_STARTS 1 99999 && check_number PAUSE 0 999
MPI_OPTIONS="--bind-to none"                               # processes may use all cores: they read data in threads
[ "$(id -u)" != 0 ] || MPI_OPTIONS+=" --allow-run-as-root" # as in most containers
SMALL=()
if [ "$SMOKE" = 1 ]; then # a tiny model, a tiny text, few steps; keep_training lets one process die
    : "${OUT_DIR:=run_smoke_$(basename "${name#run_}" .sh)}" "${DATA_DIR:=$OUT_DIR/data}" "${STEPS:=4}"
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
# begin OPTION...: sets and checks the settings, refuses options that would contradict them, sets launch, and locks
# OUT_DIR. What a start has left running holds the lock, too.
begin() {
    local word
    : "${OUT_DIR:=${name%.sh}}" "${DATA_DIR:=dev/data}" "${TRAINER:=./${program}cu}"
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
    [ "$SMOKE" = 0 ] || say "SMOKE=1: a tiny model learns README.md; numbers mean nothing, and one process is killed"
}

build() { # the trainer, unless TRAINER is a path of its own
    [[ $TRAINER != ./$program* ]] || make -s "${TRAINER#./}" ||
        stop "the build failed; \`make doctor\` says what is missing"
    [ -x "$TRAINER" ] || stop "TRAINER: $TRAINER: no such program; without TRAINER, one is built"
    [[ ${LAUNCH:-} != mpirun* ]] || command -v mpirun >/dev/null ||
        stop "mpirun: no such program; install Open MPI, or start scripts/multi_node/run_tcp.sh, which needs none"
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

fetch() { # COUNT FILES PROGRAM OPTION...: a program of dev/data, unless so many FILES are there
    [ "$(compgen -G "$2" | wc -l)" -lt "$1" ] || return 0
    python3 "dev/data/$3" "${@:4}" ||
        stop "the data did not come; what has come stays, and the same command goes on with it"
}

stand_in() { # TOKENIZER HELLASWAG SHARDS: for SMOKE, small files in the place of those that are fetched
    local made=$DATA_DIR/made encode=(./tokenize --overwrite --tokenizer "$1")
    [ -x tokenize ] || make -s tokenize
    mkdir -p "$made" "$DATA_DIR/$2" "$DATA_DIR/${3%/*}"
    printf '%s\n' 'h e' 't he' 'i n' >"$made/merges.txt"
    python3 dev/data/vocab.py --merges "$made/merges.txt" --out "$made" && cp "$made/gpt2_tokenizer.bin" "$1"
    "${encode[@]}" --eval -o "$DATA_DIR/$2/hellaswag" - \
        <<<'{"context": "ab", "completions": [" c", " d", " e", " f"], "label": 1}'
    "${encode[@]}" --val-tokens 3000 --shard-size 8000 -o "$DATA_DIR/$3" README.md
}

# gpt2_data FOLDER/PREFIX OPTION...: GPT-2's tokenizer, HellaSwag, SHARDS files of FineWeb, and one more to validate.
gpt2_data() {
    local tokenizer=$DATA_DIR/gpt2_tokenizer.bin folder=$DATA_DIR/${1%/*}
    [ "$SMOKE" = 0 ] || { stand_in "$tokenizer" hellaswag "$1"; return; }
    fetch 1 "$tokenizer" vocab.py --out "$DATA_DIR"
    fetch 1 "$DATA_DIR/hellaswag/hellaswag_val.bin" hellaswag.py --out "$DATA_DIR/hellaswag" --vocab "$tokenizer"
    fetch $((SHARDS + 1)) "$DATA_DIR/$1_*.bin" fineweb.py --out "$folder" --limit "$SHARDS" "${@:2}"
}

# llama_data REPOSITORY NAME FOLDER OPTION...: the tokenizer of a model of the Hub, and what is made with it: HellaSwag,
# and shards of SHARDS files of FineWeb-Edu's text. This needs huggingface_hub and pyarrow.
llama_data() {
    local tokenizer=$DATA_DIR/$2_tokenizer.bin folder=$DATA_DIR/$3
    [ "$SMOKE" = 0 ] || { stand_in "$tokenizer" "$2_hellaswag" "$3/edu_fineweb"; return; }
    mkdir -p "$folder"
    [ -e "$tokenizer" ] || python3 dev/hf.py import "$1" "$DATA_DIR/$2.bin" || stop "the tokenizer did not come"
    fetch 1 "$DATA_DIR/$2_hellaswag/hellaswag_val.bin" \
        hellaswag.py --out "$DATA_DIR/$2_hellaswag" --vocab "$tokenizer"
    fetch 2 "$folder/edu_fineweb_*.bin" fineweb.py --type edu --source parquet --out "$folder" --vocab "$tokenizer" \
        --limit "$SHARDS" "${@:4}"
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

# keep_training COMMAND...: from the last checkpoint, again and again until it ends with status 0. It gives up after two
# starts in a row without a new checkpoint, because that is no accident, and after MAX_STARTS.
keep_training() {
    local start saved failures=0
    trap 'on_signal HUP' HUP && trap 'on_signal INT' INT && trap 'on_signal TERM' TERM && trap 'on_signal USR1' USR1
    for ((start = 1; start <= MAX_STARTS; start++)); do
        [ "$start" = 1 ] || run_child sleep "$PAUSE"
        [ "$start" = 1 ] || PAUSE=$((PAUSE < 150 ? 2 * PAUSE : 300))
        saved=$(checkpoints)
        say "start $start of $MAX_STARTS, from step $(newest_step) of $STEPS; Ctrl-C saves and ends"
        run_child "$@" --resume
        if [ "$status" = 0 ]; then
            [ "$(newest_step)" -ge "$STEPS" ] || stop "the training was told to end"
            trap - HUP INT TERM USR1
            return
        fi
        failures=$((failures + 1))
        [ "$(checkpoints)" = "$saved" ] || failures=0
        say "status $status after $((SECONDS - began)) s, at step $(newest_step) of $STEPS"
        [ $failures -lt 2 ] || stop "given up: two starts in a row saved nothing in $OUT_DIR; the lines above say why"
        unset EMU_NCCL_FAULT
    done
    stop "given up after $MAX_STARTS starts (MAX_STARTS)"
}

# ---- After the training ----
try() { "$@" || say "left out, as the lines above say; when that is mended, the same command makes it"; }
# The last value of a kind of line in main.log: tel, the validation loss; eval, HellaSwag.
last() { sed -n "s/^s:[0-9]* $1:\([-0-9.a-z]*\)$/\1/p" "$OUT_DIR/main.log" | tail -n 1; }

export_model() { # MODEL: for Hugging Face. The folder gets its name when it is complete
    [ ! -e "$OUT_DIR/hf" ] || return 0
    rm -rf "$OUT_DIR/hf.part"
    python3 dev/hf.py export "$1" "$OUT_DIR/hf.part" && mv "$OUT_DIR/hf.part" "$OUT_DIR/hf"
}

finish() { # WHAT TO EXPECT: exports the model, draws the curves, and says the result
    try export_model "${best:-$OUT_DIR/model_$(printf %08d "$STEPS").bin}"
    try python3 dev/plot.py "$OUT_DIR" -o "$OUT_DIR/curves.png"
    say "$OUT_DIR: step $STEPS: validation loss $(last tel), HellaSwag $(last eval | grep . || echo unknown) ($1)"
}
