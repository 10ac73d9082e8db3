# shellcheck shell=bash disable=SC2034 # what is set here is used there
# What the scripts beside this one share; they source this file. What is trained, and all that is done before and after,
# is a recipe's: RECIPE=scripts/run_gpt2_350M.sh scripts/multi_node/run_mpi.sh trains another than GPT-2 124M. Every
# setting of scripts/settings.sh can be given in the environment. OUT_DIR and DATA_ROOT lie on a file system that all
# nodes share, as the repository does.
RECIPE=${RECIPE:-scripts/run_gpt2_124M.sh}
recipe_only=yes
if [ ! -e "$RECIPE" ]; then
    echo "${0##*/}: RECIPE: $RECIPE: no such file; expected scripts/run_gpt2_124M.sh or one beside it" >&2
    exit 1
fi
# shellcheck source=scripts/run_gpt2_124M.sh
. "$RECIPE"

stages_unless_given() { # by the environment
    is_given STAGES || STAGES=$1
}

# ---- Under Slurm ----

# Inside a job: fetching and building would keep its GPUs waiting.
in_job() {
    NUM_NODES=$SLURM_JOB_NUM_NODES
    self="sbatch --nodes $NUM_NODES scripts/multi_node/$1"
    stages_unless_given "check plan train export plot summary"
}

# Sets launch: how Slurm starts a process for each GPU of the job's nodes. All GPUs of a node are visible to each of its
# processes, which may use all of its cores. One that fails ends the others by itself, when it has said why.
srun_command() { # srun's --mpi
    local cores=$((SLURM_CPUS_ON_NODE / GPUS_PER_NODE))
    launch=(srun "--mpi=$1" "--ntasks=$num_gpus" "--ntasks-per-node=$GPUS_PER_NODE"
        "--cpus-per-task=$((cores > 0 ? cores : 1))" --cpu-bind=none --distribution=block --kill-on-bad-exit=0
        --wait=0)
}

# The signal before the job's time limit stops the run in order; the job is then queued again, to go on.
stopped() { # signal
    if [ "$1" = USR1 ] && [ "$status" -eq 0 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
        say "job $SLURM_JOB_ID is out of time and queued again"
        scontrol requeue "$SLURM_JOB_ID"
        exit 0
    fi
    exit $((128 + $(kill -l "$1")))
}
