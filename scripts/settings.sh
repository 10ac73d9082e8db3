# shellcheck shell=bash disable=SC2034 # those who source this file use what is set here
# The settings that scripts take from the environment, in a table that --help prints. A name has one meaning everywhere.

# Of run_*.sh and multi_node/: how a model is trained.
RUN_SETTINGS="\
SMOKE               1: everything in small, on the CPU; other settings still count
STAGES              which of: check build plan fetch train export plot summary
OUT_DIR             the run's folder
DATA_ROOT           the folder of the data
DATA                fineweb10B, fineweb100B, edu_fineweb10B or edu_fineweb100B
TRAIN_DATA          shards of your own, as a pattern, instead of DATA
VAL_DATA            the same for validation
VOCAB               GPT-2's gpt2_tokenizer.bin
MIRROR              where the data are fetched from instead (dev/data/README.md)
PROGRAM             the trainer, if it is not to be built
GPUS_PER_NODE       how many GPUs of a machine to use
MODEL               a size or model, as for --init
SEQ_LEN             tokens in a sequence
BATCH_SIZE          sequences at once on a GPU; without it, what fits (--auto)
TOTAL_BATCH         tokens in a step
STEPS               steps of the whole run
LR                  the highest learning rate
WARMUP              steps in which it rises
FINAL_LR_FRAC       where it ends, as a fraction
WEIGHT_DECAY        of matrices and embeddings
OPTIMIZER           adamw, or muon for the matrices of the blocks
ZERO_STAGE          what several GPUs share
RECOMPUTE           the level of --recompute; without it, what fits (--auto)
VAL_EVERY           steps between validations
VAL_TOKENS          tokens in a validation, whatever the micro-batch
EVAL_EXAMPLES       of HellaSwag; 0: all
SAMPLE_EVERY        steps between samples; 0: none
CHECKPOINT_EVERY    steps between checkpoints, what a crash costs at most
KEEP                how many of the last checkpoints stay
KEEP_MAJOR          those of every so many steps stay, too
STOP_ON_DIVERGENCE  0: only warn when the loss or the gradient norm has left for good
WATCHDOG            seconds without progress that count as hung
START_TIMEOUT       seconds for all processes to come
MAX_STARTS          starts in all, with those after failures (restart.sh)
PAUSE               seconds before the next start; they grow to 300 (restart.sh)
RECIPE              for multi_node/: the script that says what is trained
HOSTS               for multi_node/: the machines, in the order of their ranks
NODE                for run_tcp.sh without ssh: which of HOSTS this is
SERVER              for run_tcp: the first machine, as the others reach it
PORT                for run_tcp: a free one there
MEETING             for run_folder.sbatch: the folder where the processes meet
SRUN_MPI            for run_mpi.sbatch: srun's --mpi"

check_restarts() { # the settings of restart.sh; its callers check them before hours have passed
    case ${MAX_STARTS:-20} in
        0* | *[!0-9]* | ??????*) stop "MAX_STARTS is '$MAX_STARTS', expected 1 to 99999" ;;
    esac
    case ${PAUSE:-10} in *[!0-9]* | ????*) stop "PAUSE is '$PAUSE', expected whole seconds, 0 to 999" ;; esac
}

names_of() { awk '{ print $1 }' <<<"$1"; } # table

# note_settings NAME...: says of each that the environment has that this script does not take it.
note_settings() {
    local name
    for name in "$@"; do
        [ -z "$(compgen -e -X "!$name")" ] || echo "${0##*/}: the setting $name does nothing here (--help)" >&2
    done
}

# The same of all of run_*.sh, but those that programs of others take, too.
note_run_settings() {
    # shellcheck disable=SC2046 # a word each
    note_settings $(names_of "$RUN_SETTINGS" | grep -vxE 'HOSTS|NODE|SERVER|PORT')
}
