#!/usr/bin/env bash
# Trains a recipe on all GPUs of several machines, or of this one, without MPI:
#
#   HOSTS="node1 node2" scripts/multi_node/run_tcp.sh [options]    on node1; further options of the trainer
#   scripts/multi_node/run_tcp.sh                                  this machine alone; needs neither ssh nor MPI
#   SMOKE=1 scripts/multi_node/run_tcp.sh                          all of it in small, on the CPU of this machine
#
# This machine reaches the others by ssh without a password. The repository, OUT_DIR and DATA_DIR lie in folders that
# all of them share. RECIPE=scripts/run_gpt2_350M.sh trains another model than GPT-2 124M. Ctrl-C saves and ends; the
# same command goes on. The processes know each other by GPT2C_SECRET, which is made where it is not set, or by a file
# of mode 600 (--secret-file). Without ssh, PLAN=1 prints the trainer's command: start it once for each GPU on each
# machine, with --process-rank 0, 1 and so on.
set -eu
cd "$(dirname "$0")/../.."
. scripts/common.sh
: "${HOSTS:=localhost}"                 # in the order of their ranks, this machine first, by names the others know
: "${PORT:=29500}"                      # a free one of this machine
: "${RECIPE:=scripts/run_gpt2_124M.sh}" # what is trained
check_nodes

if [ "${1:-}" != start ]; then # the recipe starts this script again, as its launcher
    export HOSTS GPUS=$((GPUS * ${#hosts[@]})) LAUNCH="scripts/multi_node/run_tcp.sh start"
    export GPT2C_SECRET=${GPT2C_SECRET:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
    exec "$RECIPE" --nccl-init tcp --server-ip "${hosts[0]}:$PORT" --num-processes "$GPUS" "$@"
fi

# `start COMMAND...`: COMMAND once for each GPU of all machines.
quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; }
shift
words=""
for word in "$@"; do words+=" $(quoted "$word")"; done
variables="" # what ssh would leave behind
for variable in $(compgen -e NCCL_) $(compgen -e EMU_) $(compgen -e OMP_) LD_LIBRARY_PATH; do
    [ -z "${!variable:-}" ] || variables+=" $(quoted "$variable=${!variable}")"
done
# A machine that is gone is noticed within a minute, as the trainer notices it.
ssh="ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
read_secret='IFS= read -r GPT2C_SECRET && export GPT2C_SECRET && exec "$@"'

children=()
trap 'signals=$((signals + 1)); kill -s USR1 "${children[0]:-}" 2>/dev/null || true' USR1 # then all save together
trap 'signals=$((signals + 1)); kill -s TERM "${children[@]}" 2>/dev/null || true' TERM
for ((rank = 0; rank < GPUS; rank++)); do
    host=${hosts[rank * ${#hosts[@]} / GPUS]}
    if [ "$host" = "${hosts[0]}" ]; then
        "$@" --process-rank "$rank" &
    else # the secret is no word of a command, because everybody on a machine sees those
        $ssh "$host" "cd $(quoted "$PWD") && exec env $variables sh -c $(quoted "$read_secret") sh $words" \
            --process-rank "$rank" < <(printf '%s\n' "$GPT2C_SECRET") &
    fi
    children+=($!)
done
result=0
for child in "${children[@]}"; do # all end when one fails
    wait_for "$child"
    [ "$result" != 0 ] || result=$status
done
exit "$result"
