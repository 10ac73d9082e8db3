# shellcheck shell=bash disable=SC2034 # what is set here is used there
# What the scripts beside this one train, and how they start it; they source this file. Every variable can be given in
# the environment: OUT_DIR=/shared/run scripts/multi_node/run_mpi.sh
#
# GPT-2 124M on 10 billion tokens of FineWeb, 18,865 steps of 524,288 tokens: a validation loss near 3.28.

PROGRAM=${PROGRAM:-./train_gpt2cu}                   # the same path on all nodes
TRAIN_DATA=${TRAIN_DATA:-shards/fineweb_train_*.bin} # patterns, for the trainer to expand; the same on all nodes
VAL_DATA=${VAL_DATA:-shards/fineweb_val_*.bin}
OUT_DIR=${OUT_DIR:-run_gpt2_124M}                    # in a folder that all nodes share
MODEL=${MODEL:-d12}
SEQ_LEN=${SEQ_LEN:-1024}
BATCH_SIZE=${BATCH_SIZE:-64}                         # at most so many sequences at once on a GPU
TOTAL_BATCH=${TOTAL_BATCH:-524288}                   # tokens in a step, whatever the number of GPUs
LR=${LR:-6e-4}
ZERO_STAGE=${ZERO_STAGE:-1}
CHECKPOINT_EVERY=${CHECKPOINT_EVERY:-500}            # steps, what a crash costs at most
WATCHDOG=${WATCHDOG:-45}                             # seconds without progress that count as hung
START_TIMEOUT=${START_TIMEOUT:-600}                  # seconds for all processes to come; a pause of restart.sh: 300
GPUS_PER_NODE=${GPUS_PER_NODE:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true)}

. scripts/children.sh

stop() { # message...: ends the script
    echo "${0##*/}: $*" >&2
    exit 1
}

# Sets train: the command of a run on so many GPUs. The micro-batch is the largest that fits the total batch: another
# number of GPUs changes nothing but the speed, and may resume the same run.
train_command() { # number of GPUs, further options...
    local batch=$BATCH_SIZE
    case ${GPUS_PER_NODE:-0} in
        0 | *[!0-9]*) stop "nvidia-smi finds no GPU; GPUS_PER_NODE=8 says how many a node has" ;;
    esac
    [ -x "$PROGRAM" ] || stop "$PROGRAM: not here; start this in the root of the repository, after make train_gpt2cu"
    while [ "$batch" -gt 1 ] && [ $((TOTAL_BATCH % (batch * SEQ_LEN * $1))) -ne 0 ]; do batch=$((batch - 1)); done
    [ $((TOTAL_BATCH % (batch * SEQ_LEN * $1))) -eq 0 ] ||
        stop "TOTAL_BATCH: $TOTAL_BATCH tokens are no multiple of SEQ_LEN x GPUs = $SEQ_LEN x $1"
    train=("$PROGRAM" --train-data "$TRAIN_DATA" --val-data "$VAL_DATA" --out-dir "$OUT_DIR" --init "$MODEL"
        --batch-size "$batch" --seq-len "$SEQ_LEN" --total-batch "$TOTAL_BATCH" --zero-stage "$ZERO_STAGE"
        --lr "$LR" --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
        --val-every 250 --sample-every 5000 --checkpoint-every "$CHECKPOINT_EVERY" --keep 3
        --watchdog "$WATCHDOG" --start-timeout "$START_TIMEOUT" "${@:2}")
}

# Sets launch: how Slurm starts a process for each GPU of the job's nodes. All GPUs of a node are visible to each of its
# processes, which may use all of its cores. One that fails ends the others by itself, when it has said why.
srun_command() { # srun's --mpi
    local cores=$((SLURM_CPUS_ON_NODE / GPUS_PER_NODE))
    launch=(srun "--mpi=$1" "--ntasks=$((SLURM_JOB_NUM_NODES * GPUS_PER_NODE))" "--ntasks-per-node=$GPUS_PER_NODE"
        "--cpus-per-task=$((cores > 0 ? cores : 1))" --cpu-bind=none --distribution=block --kill-on-bad-exit=0
        --wait=0)
}

# For Slurm: scripts/restart.sh with this command. The signal before the job's time limit stops it in order; the job is
# then queued again, to go on from the checkpoint.
restart_in_job() { # COMMAND...
    local child="" out_of_time=no
    trap 'signals=$((signals + 1)) out_of_time=yes; signal_children USR1 $child' USR1
    trap 'signals=$((signals + 1)); signal_children USR1 $child' TERM
    scripts/restart.sh "$@" &
    child=$!
    wait_for $child
    if [ $out_of_time = yes ] && [ "$status" -eq 0 ]; then
        echo "job $SLURM_JOB_ID: out of time, queued again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
}
