# shellcheck shell=bash disable=SC2034 # the recipes and multi_node/ use some of what is set here
# What run_gpt2_124M.sh and its siblings do. A recipe sets NAME, TITLE, DATA and EXPECT, sources this file, sets `train`
# to the trainer's options, and calls reproduce. multi_node/ starts the processes of a recipe in other ways. From a
# machine with GPUs to a trained model, in stages:
#
#   build     the trainer
#   plan      what the run takes of each GPU, and whether it fits
#   fetch     the tokenizer, the tokens and HellaSwag, as far as they are missing
#   train     under restart.sh, from the last checkpoint
#   export    for Hugging Face
#   plot      the curves
#   summary   what came of it
#
# What is done already is not done again, so that the same command goes on after whatever stopped it.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    echo "reproduce.sh: is a part of run_gpt2_124M.sh and its siblings; start one of them" >&2
    exit 1
fi
unset CDPATH # with it, cd may go elsewhere, and says where
[ -n "${script:-}" ] || script=$(cd "$(dirname "$0")" && pwd)/${0##*/} # multi_node/ has moved to another folder
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export LC_ALL=C
. scripts/children.sh

# ---- Settings, in the environment ----

SETTINGS="\
SMOKE               1: everything in small, on the CPU
STAGES              which of: build plan fetch train export plot summary
OUT_DIR             the run's folder
DATA_ROOT           the folder of the data
MIRROR              where the data are fetched from instead (dev/data/README.md)
PROGRAM             the trainer, if it is not to be built
GPUS_PER_NODE       how many GPUs of a machine to use
MAX_STARTS          starts in all, with those after failures (restart.sh)
PAUSE               seconds before the next start; they grow to 300 (restart.sh)
RECIPE              for multi_node/: the script that says what is trained
HOSTS               for multi_node/: the machines, in the order of their ranks
NODE                for run_tcp.sh without ssh: which of HOSTS this is
SERVER              for tcp: the first machine, as the others reach it
PORT                for tcp: a free one there
START               for run.sbatch: how the processes find each other, by folder, tcp or mpi
SRUN_MPI            for run.sbatch: srun's --mpi"

ALL_STAGES="build plan fetch train export plot summary"
SMOKE=${SMOKE:-0} PROGRAM=${PROGRAM:-} MIRROR=${MIRROR:-}
# shellcheck disable=SC2153 # NAME is the recipe's
OUT_DIR=${OUT_DIR:-$([ "$SMOKE" = 1 ] && echo "run_smoke_$NAME" || echo "run_$NAME")} # in the repository
DATA_ROOT=${DATA_ROOT:-$([ "$SMOKE" = 1 ] && echo "$OUT_DIR/data" || echo dev/data)}
NUM_NODES=1              # multi_node/ has more
target=train_gpt2cu      # what make builds
SHARD_TOKENS=100000000   # of a shard of FineWeb
shards_at_most=""        # shards to fetch; empty: as many as the run reads
query_gpus() { # name, MiB of free memory
    nvidia-smi --query-gpu=name,memory.free --format=csv,noheader,nounits \
        ${CUDA_VISIBLE_DEVICES:+"--id=$CUDA_VISIBLE_DEVICES"} 2>/dev/null
}

# SMOKE=1: the same on the CPU with a tiny model, a tiny corpus and few steps. All that is different is set here.
smoke_settings() {
    train+=(--layers 1 --heads 1 --channels 16 --context 16 --seq-len 16 --total-batch 32 --steps 4 --warmup 2
        --val-every 1000 --val-sequences 2 --eval-examples 1 --sample-every 0 --checkpoint-every 2 --keep-major 4)
    MIRROR=${MIRROR:-file://$(absolute "$OUT_DIR")/mirror} target=train_gpt2emu
    shards_at_most=2 SHARD_TOKENS=20000
    export PAUSE="${PAUSE:-0}" OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 EMU_CHECK=0 EMU_THREADS=1 OMP_NUM_THREADS=1
    MPIRUN_OPTIONS=(--oversubscribe)
    # In the first start of this recipe a process dies, so that there is a second one.
    [ "$NAME" != gpt2_124M ] || WRAP=(dev/test/programs/die_once.sh "$OUT_DIR/died_once" 22)
    GPUS_PER_NODE=${GPUS_PER_NODE:-$((NUM_NODES > 1 ? 1 : 2))}
    # shellcheck disable=SC2317 # called by find_gpus
    query_gpus() { for ((i = 0; i < GPUS_PER_NODE; i++)); do echo "no GPU but the CPU, 4096"; done; }
}

value_of() { # --option [-letter]: its value in `train`, of which the trainer takes the last
    local word before="" value=""
    for word in "${train[@]}"; do
        case $before in "$1" | "${2:-$1}") value=$word ;; esac
        before=$word
    done
    echo "$value"
}

settle() { # further options of the trainer...
    local word
    case $SMOKE in
        0) ;;
        1) smoke_settings ;;
        *) stop "SMOKE is '$SMOKE', expected 1 (everything in small, on the CPU) or 0" ;;
    esac
    for word in "$@"; do # --name=value in two words
        case $word in --*=*) train+=("${word%%=*}" "${word#*=}") ;; *) train+=("$word") ;; esac
    done
    STAGES=${STAGES:-$ALL_STAGES}
    for word in $STAGES; do
        declare -F "stage_$word" >/dev/null || stop "STAGES: there is no '$word', expected some of: $ALL_STAGES"
    done
    check_restarts
    built_here=no
    [ -n "$PROGRAM" ] || built_here=yes PROGRAM=./$target
    OUT_DIR=$(value_of --out-dir -o) STEPS=$(value_of --steps -x)
    TRAIN_DATA=$(value_of --train-data -i) VOCAB=$(value_of --tokenizer) QUESTIONS=$(value_of --hellaswag-data)
    mkdir -p "$OUT_DIR" 2>/dev/null || stop "$OUT_DIR: this folder cannot be made (OUT_DIR names another)"
}

# ---- Talking ----

stage=start
say() { printf '%s %-8s %s\n' "$(date +%H:%M:%S)" "$stage" "$*"; }

stop() { # message...: ends the script
    echo "${0##*/}: $*" >&2
    exit 1
}

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

# ---- Children, and signals for them ----

stopped_by=""
on_signal() { stopped_by=${stopped_by:-$1}; }

# How the script ends after a signal. multi_node/run.sbatch has Slurm queue the job again.
stopped() { # signal
    exit $((128 + $(kill -l "$1")))
}

end_if_stopped() {
    [ "$signals" -gt 0 ] || return 0
    say "stopped by SIG$stopped_by$([ "$stage" != train ] || echo " at step $(newest_step "$OUT_DIR") of $STEPS")." \
        "The same command goes on."
    stopped "$stopped_by"
}

run_and_wait() { # COMMAND...: sets status, unless a signal ends the script
    end_if_stopped
    run_child "$@"
    end_if_stopped
}

run_python() { # MODULE PROGRAM...: with a python3 that has the module
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c "import $1" 2>/dev/null || continue
        run_and_wait "$python" "${@:2}"
        [ "$status" -eq 0 ] || stop "$2 failed"
        return
    done
    say "no python3 with $1 (apt-get install python3-$1), which $2 needs: left out"
}

# ---- build and plan ----

stage_build() {
    if [ "$built_here" = yes ]; then
        run_and_wait make -s "$target" tokenize
        [ "$status" -eq 0 ] || stop "the build failed; \`make doctor\` says what is missing"
    fi
    [ -x "$PROGRAM" ] || stop "$PROGRAM: no such program (PROGRAM names it; without it, one is built)"
    say "$PROGRAM"
}

find_gpus() { # sets GPUS_PER_NODE, num_gpus, gpu_name, and gpu_mib, what the fullest GPU has free
    local lines count
    lines=$(query_gpus) || lines=""
    [ -n "$lines" ] || stop "nvidia-smi finds no GPU. SMOKE=1 runs everything in small on the CPU"
    count=$(wc -l <<<"$lines")
    GPUS_PER_NODE=${GPUS_PER_NODE:-$((count))}
    { [ "$GPUS_PER_NODE" -ge 1 ] && [ "$GPUS_PER_NODE" -le "$count" ]; } 2>/dev/null ||
        stop "GPUS_PER_NODE is '$GPUS_PER_NODE', expected 1 to $((count)), as many as nvidia-smi finds"
    gpu_name=${lines%%,*}
    gpu_mib=$(head -n "$GPUS_PER_NODE" <<<"$lines" | sed 's/.*, *//' | sort -n | head -n 1)
    num_gpus=$((NUM_NODES * GPUS_PER_NODE))
}

# Sets planned to the options but those that name data, which may not be here yet.
options_to_plan() {
    planned=()
    set -- "${train[@]}"
    while [ $# -gt 0 ]; do
        case $1 in
            --train-data | -i | --val-data | -j | --tokenizer | --hellaswag* | -h | --mmlu | --eval-examples) shift ;;
            *) planned+=("$1") ;;
        esac
        shift
    done
}

stage_plan() {
    [ -x "$PROGRAM" ] || stage_build
    find_gpus
    say "$num_gpus x $gpu_name, $gpu_mib MiB free on each"
    if [ "$num_gpus" -gt 1 ] && [ "$built_here" = yes ] && [ "$SMOKE" = 0 ] && ! grep -q libnccl "$PROGRAM"; then
        stop "$PROGRAM was built without NCCL, which several GPUs need: \`make doctor\` says how to get it;" \
            "GPUS_PER_NODE=1 takes one GPU"
    fi
    options_to_plan
    local plan fits ranks=()
    [ "$num_gpus" -eq 1 ] || ranks=(--num-processes "$num_gpus")
    plan=$("$PROGRAM" --plan "${planned[@]}" ${ranks[@]+"${ranks[@]}"} \
        --gpu-memory "$(awk -v m="$gpu_mib" 'BEGIN { printf "%.4f", m / 1024 }')" 2>&1) ||
        stop "$PROGRAM --plan: $(tail -n 1 <<<"$plan" | sed "s/^${PROGRAM##*/}: //")"
    sed -n 's/^\(auto\|memory\|checkpoints\|fits\)  */\1: /p' <<<"$plan" | while read -r line; do say "$line"; done
    fits=$(sed -n 's/^fits *\(no, .*\)/\1/p' <<<"$plan")
    [ -z "$fits" ] || stop "$gpu_name: the run does not fit: $fits"
}

# ---- fetch ----

# How many shards of the training data the run reads, of those that are published.
shard_limit() {
    local reads published=100
    reads=$((STEPS * $(value_of --total-batch -d) / SHARD_TOKENS + 2))
    case $DATA in *100B) published=1000 ;; esac
    echo "${shards_at_most:-$((reads < published ? reads : published))}"
}

count_files() { find "$DATA_ROOT/$DATA" -maxdepth 1 -name "*_$1_*.bin" 2>/dev/null | wc -l; }

# Are there tokens to be fetched?
needs_tokens() {
    case $TRAIN_DATA in "$DATA_ROOT/$DATA/"*) ;; *) return 1 ;; esac # data of the user's own
    [ "$(count_files val)" -eq 0 ] || [ "$(count_files train)" -lt "$(shard_limit)" ]
}

needs_fetch() { [ ! -e "$VOCAB" ] || [ ! -e "$QUESTIONS" ] || needs_tokens; }

stage_fetch() {
    local version=${DATA##*fineweb} kind=classic
    case $DATA in edu_*) kind=edu ;; esac
    [ -e "$VOCAB" ] || run_fetch vocab.py --out "$(dirname "$VOCAB")"
    [ -e "$QUESTIONS" ] || run_fetch hellaswag.py --out "$(dirname "$QUESTIONS")" --vocab "$VOCAB"
    ! needs_tokens ||
        run_fetch fineweb.py --type "$kind" --version "$version" --out "$DATA_ROOT/$DATA" --limit "$(shard_limit)"
    say "$(count_files train) shards in $DATA_ROOT/$DATA, $QUESTIONS and $VOCAB are here"
}

run_fetch() { # program of dev/data, its options...
    say "dev/data/$1"
    run_and_wait python3 "dev/data/$1" "${@:2}" ${MIRROR:+--mirror "$MIRROR"}
    [ "$status" -eq 0 ] || stop "the data did not come; what has come stays, and the same command goes on with it"
}

# ---- train ----

last_checkpoint() { printf '%s/%s_%08d.bin' "$OUT_DIR" "$1" "$STEPS"; } # model or state
is_trained() { [ -e "$(last_checkpoint model)" ] && [ -e "$(last_checkpoint state)" ]; }

# Sets launch, what starts the processes, from train: here those of this machine, which find each other in a folder.
launch_command() {
    launch=("${train[@]}")
    [ "$num_gpus" -gt 1 ] || return 0
    mkdir -p "$OUT_DIR/start"
    launch=(scripts/multi_node/local_ranks.sh 0 "$num_gpus" "${train[@]}" --nccl-init fs
        --nccl-fs-path "$OUT_DIR/start" --num-processes "$num_gpus" --gpus-per-node "$GPUS_PER_NODE")
}

stage_train() {
    local at
    [ -n "${num_gpus:-}" ] || find_gpus
    ! needs_fetch || stop "the data are not complete in $DATA_ROOT: the stage fetch fetches them"
    train=("$PROGRAM" "${train[@]}")
    launch_command
    say "step $(newest_step "$OUT_DIR") of $STEPS, to step $STEPS; Ctrl-C saves and ends"
    [ -z "${WRAP[*]-}" ] || [ -e "${WRAP[1]}" ] ||
        say "SMOKE=1 kills a process here, once, to show that the run starts again"
    TERM=dumb run_and_wait scripts/restart.sh ${WRAP[@]+"${WRAP[@]}"} "${launch[@]}"
    at="step $(newest_step "$OUT_DIR") of $STEPS"
    [ "$status" -eq 0 ] || stop "the training ended with status $status at $at; the lines above say why. When that is" \
        "mended, the same command goes on from there"
    is_trained || stop "the training was told to end at $at; the same command goes on"
    say "step $STEPS of $STEPS is saved in $OUT_DIR"
}

# ---- export, plot, summary: of a run that has ended ----

# A folder that has the weights is whole: dev/hf.py writes them last.
stage_export() {
    local model
    is_trained || stop "$OUT_DIR: has no checkpoint of step $STEPS, and so nothing to export yet"
    model=$(last_checkpoint model)
    if [ "$OUT_DIR/hf/model.safetensors" -nt "$model" ]; then
        say "$OUT_DIR/hf is here"
    else
        # An earlier export goes, whole or cut short. dev/hf.py refuses a folder that holds anything else.
        rm -f "$OUT_DIR"/hf/{model.safetensors,{config,generation_config,tokenizer,tokenizer_config}.json}{,.tmp}
        run_python numpy dev/hf.py export "$model" "$OUT_DIR/hf"
    fi
}

stage_plot() { run_python matplotlib dev/plot.py "$OUT_DIR" -o "$OUT_DIR/curves.png"; }

last_of() { # kind of line of main.log
    sed -n "s/^s:[0-9]* $1:\([-0-9.a-z]*\)$/\1/p" "$OUT_DIR/main.log" | tail -n 1
}

stage_summary() {
    [ -e "$OUT_DIR/main.log" ] || stop "$OUT_DIR: has no main.log, and so nothing to sum up yet"
    say "$TITLE, step $(newest_step "$OUT_DIR") of $STEPS: validation loss $(last_of tel), HellaSwag $(last_of eval)"
    if [ "$SMOKE" = 1 ]; then
        say "SMOKE=1: a tiny model and a made-up text; these numbers mean nothing"
    else
        say "to expect at the end: $EXPECT"
    fi
    say "$(absolute "$OUT_DIR"): checkpoints, main.log, curves.png, and hf for Hugging Face"
}

# ---- All of it ----

run_stages() { # further options of the trainer...
    case ${1:-} in -h | --help) usage && exit 0 ;; esac
    settle "$@"
    take_signals
    prepare_smoke
    if is_trained; then # only what comes after it
        stage=train
        say "step $STEPS of $STEPS is saved in $OUT_DIR: nothing to train"
        for stage in plan fetch train; do STAGES=${STAGES//$stage/}; done
    fi
    for stage in $STAGES; do
        end_if_stopped
        "stage_$stage"
    done
}

reproduce() { [ "${recipe_only:-no}" = yes ] || run_stages "$@"; } # multi_node/ runs the stages itself

usage() {
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$script"
    printf 'Settings, in the environment:\n%s\n' "$SETTINGS"
}

prepare_smoke() {
    [ "$SMOKE" = 1 ] && [ ! -d "$OUT_DIR/mirror" ] || return 0
    stage=mirror
    say "$OUT_DIR/mirror stands for the hosts of the data"
    run_and_wait python3 dev/data/make_mirror.py "$OUT_DIR/mirror" >/dev/null
    [ "$status" -eq 0 ] || stop "dev/data/make_mirror.py failed"
}
