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
self=$(printf %q "${script#"$PWD/"}")
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

given=() # what the environment says, to be repeated by whoever goes on
while read -r name _; do
    if [ -n "$(compgen -e -X "!$name" || true)" ]; then given+=("$name=$(printf %q "${!name}")"); fi
done <<<"$SETTINGS"
is_given() { case " ${given[*]-} " in *" $1="*) ;; *) return 1 ;; esac }

ALL_STAGES="build plan fetch train export plot summary"
SMOKE=${SMOKE:-0} STAGES=${STAGES:-$ALL_STAGES} PROGRAM=${PROGRAM:-} MIRROR=${MIRROR:-}
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
    take_options --layers 1 --heads 1 --channels 16 --context 16 --seq-len 16 --total-batch 32 --steps 4 --warmup 2 \
        --val-every 1000 --val-sequences 2 --eval-examples 1 --sample-every 0 --checkpoint-every 2 --keep-major 4
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

# Options for `train`, in the place of those that are there.
take_options() { # words...
    local i
    while [ $# -gt 0 ]; do
        case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
        for ((i = 0; i < ${#train[@]}; i++)); do
            case $1 in --*) [ "${train[$i]}" != "$1" ] || break ;; esac
        done
        if [ "$i" -lt ${#train[@]} ] && [ $# -gt 1 ]; then
            train[i + 1]=$2
            shift 2
        else
            train+=("$1")
            shift
        fi
    done
}

value_of() { # --option -letter: its value in `train`, of which the trainer takes the last
    local word before="" value=""
    for word in "${train[@]}"; do
        case $before in "$1" | "$2") value=$word ;; esac
        before=$word
    done
    echo "$value"
}

settle() {
    case $SMOKE in
        0) ;;
        1) smoke_settings ;;
        *) stop "SMOKE is '$SMOKE', expected 1 (everything in small, on the CPU) or 0" ;;
    esac
    take_options ${arguments[@]+"${arguments[@]}"}
    for stage in $STAGES; do
        case " $ALL_STAGES " in
            *" $stage "*) ;;
            *) stop "STAGES: there is no '$stage', expected some of: $ALL_STAGES" ;;
        esac
    done
    check_restarts
    built_here=no
    [ -n "$PROGRAM" ] || built_here=yes PROGRAM=./$target
    OUT_DIR=$(value_of --out-dir -o) STEPS=$(value_of --steps -x)
    TRAIN_DATA=$(value_of --train-data -i) VOCAB=$(value_of --tokenizer "") QUESTIONS=$(value_of --hellaswag-data "")
}

# ---- Talking ----

stage=start
say() { printf '%s %-8s %s\n' "$(date +%H:%M:%S)" "$stage" "$*"; }

stop() { # message...: ends the script
    echo "${0##*/}: $*" >&2
    exit 1
}

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

python_with() { # MODULE: the python3 that has it
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c "import $1" 2>/dev/null; then echo "$python" && return; fi
    done
}

# One script at a time in a folder. The lock goes to all processes that are started: it is there as long as one of them.
lock_folder() {
    local lock=$OUT_DIR/.script${NODE:+_$NODE}.lock
    mkdir -p "$OUT_DIR" 2>/dev/null || stop "$OUT_DIR: this folder cannot be made (OUT_DIR names another)"
    if [ -L "$lock" ] || { [ -e "$lock" ] && [ ! -f "$lock" ]; }; then
        stop "$lock: is a link, a device or a pipe, expected an ordinary file; remove it"
    fi
    { : >"$lock"; } 2>/dev/null || stop "$OUT_DIR: this folder cannot be written to (OUT_DIR names another)"
    exec 9>"$lock"
    chmod 600 "$lock" 2>/dev/null || true # who may not open it cannot hold it
    ! command -v flock >/dev/null || flock -n 9 ||
        stop "$OUT_DIR: another script, or a process that one has left behind, is at work there"
}

# ---- Children, and signals for them ----

child="" child_began=0 stopped_by=""

on_signal() {
    signals=$((signals + 1)) stopped_by=${stopped_by:-$1}
    [ -n "$child" ] || return 0
    [ $((SECONDS - child_began)) -ge 2 ] || sleep 1 # a child just forked would lose it
    signal_children TERM "$child"
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
    local words=(${given[@]+"${given[@]}"} "$self") word
    for word in ${arguments[@]+"${arguments[@]}"}; do words+=("$(printf %q "$word")"); done
    say "stopped by SIG$stopped_by$(if [ "$stage" = train ]; then echo " at step $(newest_step) of $STEPS"; fi)." \
        "The same command goes on:"
    echo "    cd $(printf %q "$PWD") && ${words[*]}"
    stopped "$stopped_by"
}

# ---- build and plan ----

stage_build() {
    if [ "$built_here" = yes ]; then
        run_child make -s "$target" tokenize
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

# How many shards of the training data the run reads; 0: all there are, some of them more than once.
shard_limit() {
    local read_once published=100
    read_once=$((STEPS * $(value_of --total-batch -d) / SHARD_TOKENS + 2))
    case $DATA in *100B) published=1000 ;; esac
    echo "${shards_at_most:-$((read_once < published ? read_once : 0))}"
}

count_files() { find "$DATA_ROOT/$DATA" -maxdepth 1 -name "*_$1_*.bin" 2>/dev/null | wc -l; }

# Are there tokens to be fetched? Where all of a data set is wanted, .complete beside the tokens says that all came.
needs_tokens() {
    local limit
    case $TRAIN_DATA in "$DATA_ROOT/$DATA/"*) ;; *) return 1 ;; esac # data of the user's own
    limit=$(shard_limit)
    [ "$(count_files val)" -gt 0 ] || return 0
    if [ "$limit" -gt 0 ]; then [ "$(count_files train)" -lt "$limit" ]; else
        [ ! -e "$DATA_ROOT/$DATA/.complete" ]
    fi
}

needs_fetch() { [ ! -e "$VOCAB" ] || [ ! -e "$QUESTIONS" ] || needs_tokens; }

stage_fetch() {
    local limit some=() version=${DATA##*fineweb} kind=classic
    case $DATA in edu_*) kind=edu ;; esac
    [ -e "$VOCAB" ] || run_fetch vocab.py --out "$(dirname "$VOCAB")"
    [ -e "$QUESTIONS" ] || run_fetch hellaswag.py --out "$(dirname "$QUESTIONS")" --vocab "$VOCAB"
    if needs_tokens; then
        limit=$(shard_limit)
        [ "$limit" -eq 0 ] || some=(--limit "$limit")
        run_fetch fineweb.py --type "$kind" --version "$version" --out "$DATA_ROOT/$DATA" ${some[@]+"${some[@]}"}
        [ "$limit" -gt 0 ] || : >"$DATA_ROOT/$DATA/.complete"
    fi
    say "$(count_files train) shards in $DATA_ROOT/$DATA, $QUESTIONS and $VOCAB are here"
}

run_fetch() { # program of dev/data, its options...
    say "dev/data/$1"
    run_child python3 "dev/data/$1" "${@:2}" ${MIRROR:+--mirror "$MIRROR"}
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

# Sets launch, what starts the processes, from train: here those of this machine.
launch_command() {
    if [ "$num_gpus" -eq 1 ]; then
        launch=("${train[@]}")
    elif command -v mpirun >/dev/null && grep -q libmpi "$PROGRAM"; then
        mpirun_on localhost
    else # they find each other in a folder
        mkdir -p "$OUT_DIR/start"
        launch=(scripts/multi_node/local_ranks.sh 0 "$num_gpus" "${train[@]}" --nccl-init fs
            --nccl-fs-path "$OUT_DIR/start" --num-processes "$num_gpus" --gpus-per-node "$GPUS_PER_NODE")
    fi
}

# Sets launch for Open MPI's mpirun. Processes may use all cores of their node: they read data and watch each other in
# threads.
mpirun_on() { # hosts...
    launch=(mpirun -np "$num_gpus" --host "$(printf "%s:$GPUS_PER_NODE\n" "$@" | paste -sd, -)" --bind-to none)
    for name in $(compgen -e NCCL_) LD_LIBRARY_PATH; do
        [ -z "${!name:-}" ] || launch+=(-x "$name")
    done
    if [ "$(id -u)" -eq 0 ]; then # as in most containers
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    launch+=(${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"} "${train[@]}" --nccl-init mpi)
}

stage_train() {
    [ -n "${num_gpus:-}" ] || find_gpus
    ! needs_fetch || stop "the data are not complete in $DATA_ROOT: STAGES=fetch $self fetches them"
    train=("$PROGRAM" "${train[@]}")
    launch_command
    say "step $(newest_step) of $STEPS, to step $STEPS; Ctrl-C saves and ends"
    [ -z "${WRAP[*]-}" ] || [ -e "${WRAP[1]}" ] ||
        say "SMOKE=1 kills a process here, once, to show that the run starts again"
    TERM=dumb run_child scripts/restart.sh ${WRAP[@]+"${WRAP[@]}"} "${launch[@]}"
    [ "$status" -eq 0 ] || stop "the training ended with status $status at step $(newest_step) of $STEPS; the lines" \
        "above say why. When that is mended, the same command goes on from there"
    is_trained || stop "the training was told to end at step $(newest_step) of $STEPS; the same command goes on"
    say "step $STEPS of $STEPS is saved in $OUT_DIR"
}

# ---- export, plot, summary: of a run that has ended ----

# A folder that has the weights is whole: dev/hf.py writes them last.
stage_export() {
    local model python
    is_trained || stop "$OUT_DIR: has no checkpoint of step $STEPS, and so nothing to export yet"
    model=$(last_checkpoint model) python=$(python_with numpy)
    if [ "$OUT_DIR/hf/model.safetensors" -nt "$model" ]; then
        say "$OUT_DIR/hf is here"
    elif [ -z "$python" ]; then
        say "no python3 with numpy, which exports (apt-get install python3-numpy): left out"
    else
        rm -rf "$OUT_DIR/hf" # of an earlier checkpoint, or cut short
        run_child "$python" dev/hf.py export "$model" "$OUT_DIR/hf"
        [ "$status" -eq 0 ] || stop "the export failed"
    fi
}

stage_plot() {
    local python
    python=$(python_with matplotlib)
    if [ -z "$python" ]; then
        say "no python3 with matplotlib, which draws the curves (apt-get install python3-matplotlib): left out"
    else
        run_child "$python" dev/plot.py "$OUT_DIR" -o "$OUT_DIR/curves.png"
        [ "$status" -eq 0 ] || stop "the curves were not drawn"
    fi
}

last_of() { # kind of line of main.log
    sed -n "s/^s:[0-9]* $1:\([-0-9.a-z]*\)$/\1/p" "$OUT_DIR/main.log" | tail -n 1
}

stage_summary() {
    [ -e "$OUT_DIR/main.log" ] || stop "$OUT_DIR: has no main.log, and so nothing to sum up yet"
    say "$TITLE, step $(newest_step) of $STEPS: validation loss $(last_of tel), HellaSwag $(last_of eval)"
    if [ "$SMOKE" = 1 ]; then
        say "SMOKE=1: a tiny model and a made-up text; these numbers mean nothing"
    else
        say "to expect at the end: $EXPECT"
    fi
    say "$(absolute "$OUT_DIR"): checkpoints, main.log, curves.png, and hf for Hugging Face"
}

# ---- All of it ----

run_stages() { # further options of the trainer...
    arguments=("$@")
    case ${1:-} in -h | --help) usage && exit 0 ;; esac
    settle
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

reproduce() { [ "${recipe_only:-no}" = yes ] || run_stages "$@"; } # multi_node/ runs the stages itself

usage() {
    sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$script"
    printf 'Settings, in the environment:\n%s\n' "$SETTINGS"
}

prepare_smoke() {
    [ "$SMOKE" = 1 ] && [ ! -d "$OUT_DIR/mirror" ] || return 0
    stage=mirror
    say "$OUT_DIR/mirror stands for the hosts of the data"
    run_child python3 dev/data/make_mirror.py "$OUT_DIR/mirror" >/dev/null
    [ "$status" -eq 0 ] || stop "dev/data/make_mirror.py failed"
}
