# shellcheck shell=bash disable=SC2034 # multi_node/ uses some of what is set here
# What run_gpt2_124M.sh and its siblings do. They say what is trained and source this file; multi_node/common.sh sources
# them for other ways to start the processes. From a machine with GPUs to a trained model, in stages:
#
#   check     what is needed is here: GPUs, programs
#   build     the trainer
#   plan      what the run takes of each GPU, and whether it fits
#   fetch     the vocabulary, the tokens and HellaSwag, as far as they are missing
#   train     under restart.sh, from the last checkpoint
#   export    for Hugging Face
#   plot      the curves
#   summary   what came of it, beside what has been published
#
# What is done already is not done again, so that the same command goes on after whatever stopped it. All that appears
# on the screen is in console.log of the run's folder, too.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    echo "reproduce.sh: is a part of run_gpt2_124M.sh and its siblings; start one of them" >&2
    exit 1
fi
unset CDPATH # with it, cd may go elsewhere, and says where
[ -n "${script:-}" ] || script=$(cd "$(dirname "$0")" && pwd)/${0##*/} # multi_node/ has moved to another folder
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
self=$(printf %q "${script#"$PWD/"}")
export LC_ALL=C
. scripts/children.sh
. scripts/settings.sh

# ---- Settings: those of every recipe. The environment may override them, and those of the recipe (settings.sh) ----

given=() # what the environment says, to be repeated by whoever goes on
for name in $(names_of "$RUN_SETTINGS"); do
    if [ -n "$(compgen -e -X "!$name" || true)" ]; then given+=("$name=$(printf %q "${!name}")"); fi
done
is_given() { case " ${given[*]-} " in *" $1="*) ;; *) return 1 ;; esac }

SMOKE=${SMOKE:-0} PROGRAM=${PROGRAM:-}
STAGES=${STAGES:-check build plan fetch train export plot summary}
OUT_DIR=${OUT_DIR:-}                       # run_<name>: like all relative names, in the repository
DATA_ROOT=${DATA_ROOT:-dev/data}
VOCAB=${VOCAB:-}
MIRROR=${MIRROR:-}
BATCH_SIZE=${BATCH_SIZE:-}                 # without it, and without RECOMPUTE, --auto chooses both
RECOMPUTE=${RECOMPUTE:-}
ZERO_STAGE=${ZERO_STAGE:-1}                # several GPUs share the optimizer's state
WEIGHT_DECAY=${WEIGHT_DECAY:-0.1}
OPTIMIZER=${OPTIMIZER:-adamw}
VAL_EVERY=${VAL_EVERY:-250}
VAL_TOKENS=${VAL_TOKENS:-10485760}
EVAL_EXAMPLES=${EVAL_EXAMPLES:-0}
SAMPLE_EVERY=${SAMPLE_EVERY:-5000}
CHECKPOINT_EVERY=${CHECKPOINT_EVERY:-500}
KEEP=${KEEP:-3}
KEEP_MAJOR=${KEEP_MAJOR:-10000}
STOP_ON_DIVERGENCE=${STOP_ON_DIVERGENCE:-1}
WATCHDOG=${WATCHDOG:-45}
START_TIMEOUT=${START_TIMEOUT:-600}        # longer than a pause of restart.sh, 300
shards_at_most=""                          # shards to fetch; empty: as many as the run reads
target=""                                  # what make builds; empty: train_gpt2cu
GPU_QUERY=(nvidia-smi "--query-gpu=name,memory.free,compute_cap" "--format=csv,noheader,nounits")
SIZE=(--init "$MODEL")
NUM_NODES=1                                # multi_node/
# shellcheck disable=SC2153 # NAME is the recipe's
recipe=scripts/run_$NAME.sh
SHARD_TOKENS=100000000                     # of a shard of FineWeb

# SMOKE=1: the same on the CPU with a tiny model, a tiny corpus and few steps. All that is different is set here, unless
# the environment says it.
smoke_settings() {
    local setting
    is_given OUT_DIR || OUT_DIR=run_smoke_$NAME
    is_given MODEL || SIZE=(--layers 1 --heads 1 --channels 16 --context 16)
    for setting in DATA_ROOT="$OUT_DIR/data" MIRROR="file://$(absolute "$OUT_DIR")/mirror" SEQ_LEN=16 \
        TOTAL_BATCH=32 STEPS=4 WARMUP=2 VAL_EVERY=1000 VAL_TOKENS=32 SAMPLE_EVERY=0 CHECKPOINT_EVERY=2 KEEP_MAJOR=4 \
        EVAL_EXAMPLES=1 PAUSE=0; do
        is_given "${setting%%=*}" || printf -v "${setting%%=*}" %s "${setting#*=}"
    done
    shards_at_most=2 SHARD_TOKENS=20000
    export PAUSE OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 EMU_CHECK=0 EMU_THREADS=1 OMP_NUM_THREADS=1
    MPIRUN_OPTIONS=(--oversubscribe)
    # In the first start of this recipe a process dies, so that there is a second one.
    [ "$NAME" != gpt2_124M ] || WRAP=(dev/test/programs/die_once.sh "$OUT_DIR/died_once" 22)
    GPU_QUERY=(equal_gpus "no GPU but the CPU" 4096)
    GPUS_PER_NODE=${GPUS_PER_NODE:-$((NUM_NODES > 1 ? 1 : 2))} target=train_gpt2emu
    if { [ -z "$PROGRAM" ] && ! have g++ && ! have clang++; } || [ "${PROGRAM##*/}" = train_gpt2 ]; then
        [ $NUM_NODES -eq 1 ] || stop "no g++, which builds the trainer with several emulated GPUs (apt-get install g++)"
        GPUS_PER_NODE=1 target=train_gpt2
    fi
}

equal_gpus() { for ((i = 0; i < GPUS_PER_NODE; i++)); do echo "$1, $2, 9.0"; done; } # name, MiB

# An argument that says what a setting says counts as the setting. Sets further, the other arguments, and of_questions,
# those that the trainer takes only beside a file of questions, and so not yet for --plan.
further=() of_questions=()
follow_arguments() {
    local value words
    while [ $# -gt 0 ]; do
        value=${2:-} words=$(($# > 1 ? 2 : 1))
        case $1 in --*=*) value=${1#*=} words=1 ;; esac
        case ${1%%=*} in
            --batch-size | -b) BATCH_SIZE=$value ;;
            --seq-len | -t) SEQ_LEN=$value ;;
            --total-batch | -d) TOTAL_BATCH=$value ;;
            --steps | -x) STEPS=$value ;;
            --recompute | -r) RECOMPUTE=$value ;;
            --zero-stage | -z) ZERO_STAGE=$value ;;
            --eval-examples | --hellaswag-data) of_questions+=("${1%%=*}" "$value") ;;
            --out-dir | -o) stop "$1: the setting OUT_DIR names the run's folder, as in OUT_DIR=/disk/run $self" ;;
            *) further+=("$1") words=1 ;;
        esac
        shift $words
    done
}

settle() {
    case $SMOKE in
        0) ;;
        1) smoke_settings ;;
        *) stop "SMOKE is '$SMOKE', expected 1 (everything in small, on the CPU) or 0" ;;
    esac
    follow_arguments ${arguments[@]+"${arguments[@]}"}
    local names="check build plan fetch train export plot summary" word
    for word in $STAGES; do
        case " $names " in *" $word "*) ;; *) stop "STAGES: there is no '$word', expected some of: $names" ;; esac
    done
    for word in SEQ_LEN TOTAL_BATCH STEPS VAL_TOKENS NUM_NODES ${BATCH_SIZE:+BATCH_SIZE} \
        ${GPUS_PER_NODE:+GPUS_PER_NODE}; do
        case ${!word} in '' | 0* | *[!0-9]*) stop "$word is '${!word}', expected a whole number above 0" ;; esac
    done
    for word in CHECKPOINT_EVERY KEEP KEEP_MAJOR EVAL_EXAMPLES; do
        case ${!word} in '' | *[!0-9]*) stop "$word is '${!word}', expected a whole number" ;; esac
    done
    check_restarts
    case $OPTIMIZER in adamw | muon) ;; *) stop "OPTIMIZER is '$OPTIMIZER', expected adamw or muon" ;; esac
    # shellcheck disable=SC2153 # DATA is the recipe's
    case $DATA in
        fineweb10B | fineweb100B | edu_fineweb10B | edu_fineweb100B) ;;
        *) stop "DATA is '$DATA', expected fineweb10B, fineweb100B, edu_fineweb10B or edu_fineweb100B" ;;
    esac
    OUT_DIR=${OUT_DIR:-run_$NAME}
    VOCAB=${VOCAB:-$([ "$DATA_ROOT" = dev/data ] && echo gpt2_tokenizer.bin || echo "$DATA_ROOT/gpt2_tokenizer.bin")}
    target=${target:-train_gpt2cu}
    built_here=no
    [ -n "$PROGRAM" ] || built_here=yes PROGRAM=./$target
    tokens_name=${DATA%%fineweb*}fineweb
    own_data=no # patterns, for the trainer to expand
    if [ -n "${TRAIN_DATA:-}" ]; then own_data=yes; else TRAIN_DATA="$DATA_ROOT/$DATA/${tokens_name}_train_*.bin"; fi
    if [ -z "${VAL_DATA:-}" ]; then VAL_DATA="$DATA_ROOT/$DATA/${tokens_name}_val_*.bin"; fi
    HELLASWAG_DATA=$DATA_ROOT/hellaswag/hellaswag_val.bin
    CURVES=$OUT_DIR/curves.png EXPORT=$OUT_DIR/hf
}

# ---- Talking ----

stage=start
say() { printf '%s %-8s %s\n' "$(date +%H:%M:%S)" "$stage" "$*"; }

stop() { # message...: ends the script
    echo "${0##*/}: $*" >&2
    exit 1
}

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

have() { command -v "$1" >/dev/null 2>&1; }

# Bytes of memory, for people.
gib() { awk -v b="$1" 'BEGIN { if (b < 2^30) { printf "%.0f MiB", b / 2^20 } else { printf "%.1f GiB", b / 2^30 } }'; }

# The command, as it can be typed again.
same_command() {
    local words=(${given[@]+"${given[@]}"} "$self") word
    for word in ${arguments[@]+"${arguments[@]}"}; do words+=("$(printf %q "$word")"); done
    echo "${words[*]}"
}

# Files that this script writes to under names of its own. Others may write to their folder, too: a link there would be
# written through, and a pipe waited for.
own_files() { # path...
    local path
    for path in "$@"; do
        [ ! -L "$path" ] || stop "$path: is a link, and links are not followed here; remove it"
        [ ! -e "$path" ] || [ -f "$path" ] || stop "$path: is a device or pipe, expected an ordinary file"
    done
}

# All output also into console.log, until the end of the script. What copies it lives on when the terminal is gone.
keep_console() {
    local said log=$OUT_DIR/console${NODE:+_$NODE}.log
    said=$(mkdir -p "$OUT_DIR" 2>&1) ||
        stop "$OUT_DIR: this folder cannot be made: ${said##*: } (OUT_DIR names another)"
    own_files "$log" "$OUT_DIR/.script${NODE:+_$NODE}.lock" "$OUT_DIR"/{mirror,build,export,plot}.log
    { : >>"$log"; } 2>/dev/null || stop "$OUT_DIR: this folder cannot be written to (OUT_DIR names another)"
    exec 3>&1 4>&2
    exec > >(trap '' INT TERM HUP USR1; exec tee -a -p "$log" 2>/dev/null) 2>&1
    console=$!
    trap end_console EXIT
    printf '\n%s: %s\n' "$(date '+%Y-%m-%d %H:%M:%S')" "$(same_command)" >>"$log"
}

# What was written is on the screen before the script has ended; but what a child left behind may still write to it.
end_console() {
    exec 1>&3 2>&4
    for ((i = 0; i < 50; i++)); do
        kill -0 "$console" 2>/dev/null || return 0
        sleep 0.1
    done
}

# One script at a time in a folder. The lock goes to all processes that are started: it is there as long as one of them.
lock_folder() {
    have flock || return 0
    local lock=$OUT_DIR/.script${NODE:+_$NODE}.lock
    exec 9>"$lock" || stop "$OUT_DIR: cannot be written to"
    chmod 600 "$lock" 2>/dev/null || true # who may not open it cannot hold it
    flock -n 9 || stop "$OUT_DIR: another script, or a process that one has left behind, is at work there"
}

# ---- Children, and signals for them ----

child="" child_began=0 child_is_training=no
stopped_by=""

on_signal() {
    signals=$((signals + 1)) stopped_by=${stopped_by:-$1}
    [ -n "$child" ] || return 0
    [ $((SECONDS - child_began)) -ge 2 ] || sleep 1 # a child just forked would lose it
    if [ $child_is_training = yes ]; then
        signal_children "$(if [ "$1" = USR1 ]; then echo USR1; else echo TERM; fi)" "$child"
    else
        kill -s TERM -- "-$child" 2>/dev/null || true
    fi
}

take_signals() {
    local name
    # shellcheck disable=SC2064 # the name of now
    for name in INT TERM HUP USR1; do trap "on_signal $name" $name; done
}

run_child() { # COMMAND...: sets status
    end_if_stopped
    child_began=$SECONDS
    set -m # a group of its own: Ctrl-C reaches it through this script only
    "$@" </dev/null &
    child=$!
    set +m
    wait_for $child
    child=""
    end_if_stopped
}

# How the script ends after a signal. multi_node/common.sh has Slurm queue the job again.
stopped() { # signal
    exit $((128 + $(kill -l "$1")))
}

end_if_stopped() {
    [ "$signals" -gt 0 ] || return 0
    say "stopped by SIG$stopped_by$(if [ "$stage" = train ]; then echo " at step $(newest_step) of $STEPS"; fi)." \
        "The same command goes on:"
    echo "    cd $(printf %q "$PWD") && $(same_command)"
    stopped "$stopped_by"
}

# ---- check ----

stage_check() {
    check_programs
    find_gpus
    say "$((NUM_NODES * GPUS_PER_NODE)) x $gpu_name, $(gib $((gpu_mib * 1048576))) free on each"
}

check_programs() {
    local name programs=""
    if [ "$built_here" = yes ] && [ "$target" = train_gpt2cu ] && ! find_nvcc; then
        [ -x "$PROGRAM" ] || stop "no nvcc, which builds train_gpt2cu: install the CUDA toolkit, 12 or later" \
            "(https://developer.nvidia.com/cuda-downloads), or say where it is with CUDA_HOME=/folder"
        built_here=no
        say "no nvcc here: $PROGRAM is taken as it is"
    fi
    [ "$built_here" = no ] || have make || stop "no make, which builds the trainer (apt-get install make)"
    if needs_fetch && ! have python3; then stop "no python3, which fetches the data (apt-get install python3)"; fi
    for name in python3 mpirun; do programs="$programs, $(have $name || echo 'no ')$name"; done
    say "programs: ${programs#, }$(draws_curves || echo ', no matplotlib: no curves will be drawn')"
}

draws_curves() { python3 -c 'import matplotlib' 2>/dev/null; }

find_nvcc() {
    local folder
    have nvcc && return 0
    for folder in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} /usr/local/cuda /opt/cuda; do
        [ ! -x "$folder/bin/nvcc" ] || return 0
    done
    return 1
}

# Sets GPUS_PER_NODE, gpu_name, num_gpus, and gpu_mib, what the fullest of them has free.
find_gpus() {
    local lines
    lines=$("${GPU_QUERY[@]}" 2>/dev/null) || lines=""
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ] && [ -n "$lines" ]; then
        lines=$(visible_gpus "$lines") || exit 1
    fi
    [ -n "$lines" ] || stop "nvidia-smi finds no GPU. SMOKE=1 runs everything in small on the CPU"
    local count
    count=$(grep -c . <<<"$lines")
    GPUS_PER_NODE=${GPUS_PER_NODE:-$count}
    [ "$GPUS_PER_NODE" -le "$count" ] || stop "GPUS_PER_NODE is $GPUS_PER_NODE, but nvidia-smi finds $count"
    lines=$(head -n "$GPUS_PER_NODE" <<<"$lines")
    gpu_name=$(head -n 1 <<<"$lines") gpu_name=${gpu_name%%,*}
    gpu_mib=$(awk -F ', *' '{ if (!n++ || $2 + 0 < least) least = $2 + 0 } END { print least }' <<<"$lines")
    local old
    old=$(awk -F ', *' '$3 + 0 < 8 { print $1 " (compute capability " $3 ")"; exit }' <<<"$lines")
    [ -z "$old" ] || stop "$old: too old, 8.0 (Ampere) or later is needed"
    num_gpus=$((NUM_NODES * GPUS_PER_NODE))
}

visible_gpus() { # the lines of those that CUDA_VISIBLE_DEVICES names
    local number
    for number in ${CUDA_VISIBLE_DEVICES//,/ }; do
        case $number in *[!0-9]*) number=0 ;; esac # by its name: taken to be like the first
        sed -n "$((number + 1))p" <<<"$1"
    done
}

# ---- build ----

stage_build() {
    if [ "$built_here" = no ]; then
        [ -x "$PROGRAM" ] || stop "$PROGRAM: no such program (PROGRAM names it; without it, one is built)"
        say "$PROGRAM, given"
    else
        local log=$OUT_DIR/build.log
        say "make $target tokenize"
        run_child make "$target" tokenize >"$log" 2>&1
        [ "$status" -eq 0 ] || { tail -n 20 "$log" && stop "the build failed; all of it: $log"; }
        [ -x "$PROGRAM" ] || stop "$PROGRAM: not there after make $target; what it said: $log"
    fi
    if [ "${num_gpus:-1}" -gt 1 ] && [ "${PROGRAM##*/}" = train_gpt2cu ] && ! grep -q libnccl "$PROGRAM"; then
        stop "$PROGRAM was built without NCCL, which several GPUs need: \`make doctor\` says how to get it;" \
            "GPUS_PER_NODE=1 takes one GPU"
    fi
}

# ---- plan ----

stage_plan() {
    [ -x "$PROGRAM" ] || stage_build
    [ -n "${num_gpus:-}" ] || find_gpus
    train_options
    local plan fits memory=()
    [ "${PROGRAM##*/}" = train_gpt2 ] ||
        memory=(--gpu-memory "$(awk -v m="$gpu_mib" 'BEGIN { printf "%.4f", m / 1024 }')")
    plan=$("$PROGRAM" --plan "${options[@]}" ${ranks[@]+"${ranks[@]}"} ${memory[@]+"${memory[@]}"} 2>&1) ||
        stop "$PROGRAM --plan: $(tail -n 1 <<<"$plan" | sed "s/^${PROGRAM##*/}: //")"
    sed -n 's/^\(auto\|memory\|checkpoints\|fits\)  */\1: /p' <<<"$plan" | while read -r line; do say "$line"; done
    fits=$(sed -n 's/^fits *\(no, .*\)/\1/p' <<<"$plan")
    [ -z "$fits" ] || stop "$gpu_name: the run does not fit: $fits"
}

# Sets options, all but those of data, and ranks, for --plan.
train_options() {
    local val_sequences=$(((VAL_TOKENS + SEQ_LEN - 1) / SEQ_LEN))
    options=(--out-dir "$OUT_DIR" "${SIZE[@]}" --seq-len "$SEQ_LEN"
        --total-batch "$TOTAL_BATCH" --steps "$STEPS" --lr "$LR" --schedule cosine --warmup "$WARMUP"
        --final-lr-frac "$FINAL_LR_FRAC" --weight-decay "$WEIGHT_DECAY" --val-every "$VAL_EVERY"
        --val-sequences "$val_sequences" --sample-every "$SAMPLE_EVERY" --checkpoint-every "$CHECKPOINT_EVERY"
        --keep "$KEEP" --keep-major "$KEEP_MAJOR" --stop-on-divergence "$STOP_ON_DIVERGENCE")
    [ "${PROGRAM##*/}" != train_gpt2 ] || BATCH_SIZE=${BATCH_SIZE:-1} RECOMPUTE=${RECOMPUTE:-0} # it has no --auto
    [ -n "$BATCH_SIZE" ] && [ -n "$RECOMPUTE" ] || options+=(--auto)
    options+=(${BATCH_SIZE:+--batch-size "$BATCH_SIZE"} ${RECOMPUTE:+--recompute "$RECOMPUTE"})
    ranks=()
    if [ "$num_gpus" -gt 1 ]; then
        options+=(--zero-stage "$ZERO_STAGE" --watchdog "$WATCHDOG" --start-timeout "$START_TIMEOUT")
        ranks=(--num-processes "$num_gpus")
    fi
    # With this scale AdamW's rate and decay fit Muon (Liu et al. 2025), so that the rest of a recipe stays as it is.
    [ "$OPTIMIZER" != muon ] || options+=(--optimizer muon --muon-scale rms)
    options+=(${further[@]+"${further[@]}"})
}

# ---- fetch ----

# How many shards of the training data the run reads; 0: all there are, some of them more than once.
shard_limit() {
    local read_once=$((STEPS * TOTAL_BATCH / SHARD_TOKENS + 2)) published
    case $DATA in *100B) published=1000 ;; *) published=100 ;; esac
    echo "${shards_at_most:-$((read_once < published ? read_once : 0))}"
}

count_files() { find "$DATA_ROOT/$DATA" -maxdepth 1 -name "$1" 2>/dev/null | wc -l; }

# Are there tokens to be fetched? Where all of a data set is wanted, .complete beside the tokens says that all came.
needs_tokens() {
    local limit
    [ "$own_data" = no ] || return 1
    limit=$(shard_limit)
    [ "$(count_files "${tokens_name}_val_*.bin")" -gt 0 ] || return 0
    if [ "$limit" -gt 0 ]; then [ "$(count_files "${tokens_name}_train_*.bin")" -lt "$limit" ]; else
        [ ! -e "$DATA_ROOT/$DATA/.complete" ]
    fi
}

needs_fetch() { [ ! -e "$VOCAB" ] || [ ! -e "$HELLASWAG_DATA" ] || needs_tokens; }

stage_fetch() {
    local limit where=() some=() version=10B kind=classic folder=$DATA_ROOT/$DATA
    limit=$(shard_limit)
    [ -z "$MIRROR" ] || where=(--mirror "$MIRROR")
    [ "$limit" -eq 0 ] || some=(--limit "$limit")
    case $DATA in *100B) version=100B ;; esac
    case $DATA in edu_*) kind=edu ;; esac
    fetch "$VOCAB" vocab.py --out "$(dirname "$VOCAB")"
    fetch "$HELLASWAG_DATA" hellaswag.py --out "$(dirname "$HELLASWAG_DATA")" --vocab "$VOCAB"
    if needs_tokens; then
        say "$folder: $([ "$limit" -gt 0 ] && echo "$limit shards" || echo "all shards") of $DATA"
        run_fetch fineweb.py --type "$kind" --version "$version" --model_desc gpt-2 --source shards --out "$folder" \
            ${some[@]+"${some[@]}"}
        own_files "$folder/.complete"
        [ "$limit" -gt 0 ] || : >"$folder/.complete"
    fi
    say "$(count_files "${tokens_name}_train_*.bin") shards in $folder, $HELLASWAG_DATA and $VOCAB are here"
}

fetch() { # file, program, its options...
    [ ! -e "$1" ] || return 0
    say "$1"
    run_fetch "${@:2}"
    [ -e "$1" ] || stop "dev/data/$2 has not made $1"
}

run_fetch() { # program of dev/data, its options...
    run_child python3 "dev/data/$1" "${@:2}" ${where[@]+"${where[@]}"}
    [ "$status" -eq 0 ] || stop "the data did not come; what has come stays, and the same command goes on with it"
}

# ---- train ----

last_checkpoint() { printf '%s/%s_%08d.bin' "$OUT_DIR" "$1" "$STEPS"; } # model or state
is_trained() { [ -e "$(last_checkpoint model)" ] && [ -e "$(last_checkpoint state)" ]; }

newest_step() {
    local step
    step=$(find "$OUT_DIR" -maxdepth 1 -name 'state_*.bin' | sed -n 's/.*state_0*\([0-9][0-9]*\)\.bin$/\1/p' |
        sort -n | tail -n 1)
    echo "${step:-0}"
}

# Sets train: the command without what starts its processes.
train_command() {
    train_options
    train=("$PROGRAM" --train-data "$TRAIN_DATA" --val-data "$VAL_DATA" --tokenizer "$VOCAB" --hellaswag 1
        --hellaswag-data "$HELLASWAG_DATA" --eval-examples "$EVAL_EXAMPLES" "${options[@]}"
        ${of_questions[@]+"${of_questions[@]}"})
}

# Sets launch, what starts the processes, from train: here those of this machine.
launch_command() {
    if [ "$num_gpus" -eq 1 ]; then
        launch=("${train[@]}")
    elif have mpirun && grep -q libmpi "$PROGRAM"; then
        mpirun_on localhost
    else # they find each other in a folder
        mkdir -p "$OUT_DIR/start"
        launch=(scripts/multi_node/local_ranks.sh 0 "$num_gpus" "${train[@]}" --nccl-init fs
            --nccl-fs-path "$OUT_DIR/start" --num-processes "$num_gpus" --gpus-per-node "$GPUS_PER_NODE")
    fi
}

# Sets launch for mpirun. Processes may use all cores of their node: they read data and watch each other in threads.
mpirun_on() { # hosts...
    launch=(mpirun -np "$num_gpus")
    if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
        launch+=(--host "$(printf "%s:$GPUS_PER_NODE\n" "$@" | paste -sd, -)" --bind-to none)
        for name in $(compgen -e NCCL_) LD_LIBRARY_PATH; do
            [ -z "${!name:-}" ] || launch+=(-x "$name")
        done
        if [ "$(id -u)" -eq 0 ]; then # as in most containers
            export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        fi
    else
        launch+=(-hosts "$(printf '%s\n' "$@" | paste -sd, -)" -ppn "$GPUS_PER_NODE")
    fi
    launch+=(${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"} "${train[@]}" --nccl-init mpi)
}

stage_train() {
    [ -n "${num_gpus:-}" ] || find_gpus
    ! needs_fetch || stop "the data are not complete in $DATA_ROOT: STAGES=\"build fetch\" $recipe fetches them"
    train_command
    launch_command
    say "step $(newest_step) of $STEPS, to step $STEPS; Ctrl-C saves and ends"
    [ -z "${WRAP[*]-}" ] || [ -e "${WRAP[1]}" ] ||
        say "SMOKE=1 kills a process here, once, to show that the run starts again"
    child_is_training=yes
    TERM=dumb run_child scripts/restart.sh ${WRAP[@]+"${WRAP[@]}"} "${launch[@]}"
    child_is_training=no
    [ "$status" -eq 0 ] || stop "the training ended with status $status at step $(newest_step) of $STEPS; the lines" \
        "above and $OUT_DIR/console.log say why. When that is mended, the same command goes on from there"
    is_trained || stop "the training was told to end at step $(newest_step) of $STEPS; the same command goes on"
    say "step $STEPS of $STEPS is saved in $OUT_DIR"
}

# ---- export, plot, summary: of a run that has ended ----

# A folder that has the weights is whole: dev/hf.py writes them last.
stage_export() {
    local model python
    is_trained || stop "$OUT_DIR: has no checkpoint of step $STEPS, and so nothing to export yet"
    model=$(last_checkpoint model)
    if [ "$EXPORT/model.safetensors" -nt "$model" ]; then
        say "$EXPORT is here"
        return
    fi
    for python in python3 /usr/bin/python3 ""; do
        if [ -z "$python" ] || "$python" -c 'import numpy' 2>/dev/null; then break; fi
    done
    if [ -z "$python" ]; then
        say "no python3 with numpy, which exports (apt-get install python3-numpy): left out"
        return
    fi
    run_child "$python" dev/hf.py export "$model" "$EXPORT" >"$OUT_DIR/export.log" 2>&1
    [ "$status" -eq 0 ] || { tail -n 1 "$OUT_DIR/export.log" && stop "the export failed: $OUT_DIR/export.log"; }
    say "$EXPORT: $(cd "$EXPORT" && echo *)"
}

stage_plot() {
    if [ "$CURVES" -nt "$OUT_DIR/main.log" ]; then
        say "$CURVES is here"
    elif ! draws_curves; then
        say "no python3 with matplotlib, which draws the curves (apt-get install python3-matplotlib): left out;" \
            "$OUT_DIR/main.log has the losses"
    else
        run_child python3 dev/plot.py "$OUT_DIR" -o "$CURVES" --reference "${OPENAI:-none}" >"$OUT_DIR/plot.log" 2>&1
        [ "$status" -eq 0 ] || { tail -n 1 "$OUT_DIR/plot.log" && stop "the curves were not drawn: $OUT_DIR/plot.log"; }
        say "$CURVES"
    fi
}

last_of() { # kind of line of main.log
    sed -n "s/^s:[0-9]* $1:\([-0-9.a-z]*\)$/\1/p" "$OUT_DIR/main.log" | tail -n 1
}

stage_summary() {
    local hours step=$STEPS
    [ -e "$OUT_DIR/main.log" ] || stop "$OUT_DIR: has no main.log, and so nothing to sum up yet"
    is_trained || step="step $(newest_step) of $STEPS"
    hours=$(sed -n 's/^s:.* sec:\([0-9.]*\)$/\1/p' "$OUT_DIR/speed.log" 2>/dev/null | tail -n 1 |
        awk '{ printf ", %.1f hours of training", $1 / 3600 }')
    say "$TITLE, $step steps of $TOTAL_BATCH tokens$hours"
    printf '    %-17s %-10s %-12s %s\n' "" "this run" published "OpenAI's model" \
        "validation loss" "$(last_of tel)" "${PUBLISHED_LOSS:--}" "${OPENAI_LOSS:--}" \
        HellaSwag "$(last_of eval)" "${PUBLISHED_HELLASWAG:--}" "${OPENAI_HELLASWAG:--}"
    [ "$SMOKE" = 0 ] || echo "(SMOKE=1: a tiny model and a made-up text; its numbers mean nothing)"
    echo "$(absolute "$OUT_DIR"): hf, for Hugging Face; main.log," \
        "$([ ! -e "$CURVES" ] || echo 'curves.png, ')checkpoints"
}

# ---- All of it ----

reproduce() { # further options of the trainer...
    arguments=("$@")
    case ${1:-} in -h | --help) usage && exit 0 ;; esac
    note_settings TRAIN_SECONDS
    settle
    keep_console
    lock_folder
    take_signals
    prepare_smoke
    local stages=$STAGES
    if is_trained; then # only what comes after it
        stage=train
        say "step $STEPS of $STEPS is saved in $OUT_DIR: nothing to train"
        for stage in plan fetch train; do stages=${stages//$stage/}; done
    fi
    for stage in $stages; do
        end_if_stopped
        "stage_$stage"
    done
}

usage() {
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$script"
    printf 'Settings, in the environment:\n%s\n' "$RUN_SETTINGS"
}

prepare_smoke() {
    [ "$SMOKE" = 1 ] && [ ! -d "$OUT_DIR/mirror" ] || return 0
    have python3 || stop "no python3, which fetches the data (apt-get install python3)"
    stage=mirror
    say "$OUT_DIR/mirror stands for the hosts of the data"
    run_child python3 dev/data/make_mirror.py "$OUT_DIR/mirror" >"$OUT_DIR/mirror.log" 2>&1
    [ "$status" -eq 0 ] || stop "dev/data/make_mirror.py failed: $OUT_DIR/mirror.log"
}

if [ "${recipe_only:-no}" = no ]; then reproduce "$@"; fi
