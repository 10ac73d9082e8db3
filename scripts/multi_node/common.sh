# shellcheck shell=bash disable=SC2034 # what is set here is used there
# What the scripts beside this one share; they source this file. What is trained, and all that is done before and after,
# is a recipe's: RECIPE=scripts/run_gpt2_350M.sh scripts/multi_node/run_mpi.sh trains another than GPT-2 124M. Every
# setting that --help lists can be given in the environment. OUT_DIR and DATA_ROOT lie on a file system that all
# nodes share, as the repository does.
RECIPE=${RECIPE:-scripts/run_gpt2_124M.sh}
recipe_only=yes
if [ ! -e "$RECIPE" ]; then
    echo "${0##*/}: RECIPE: $RECIPE: no such file; expected scripts/run_gpt2_124M.sh or one beside it" >&2
    exit 1
fi
# shellcheck source=scripts/run_gpt2_124M.sh
. "$RECIPE"
