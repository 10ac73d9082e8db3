#!/usr/bin/env bash
# Trains a recipe on all GPUs of several machines, started by Open MPI's mpirun:
#
#   HOSTS="node1 node2" scripts/multi_node/run_mpi.sh [options]    on node1; further options of the trainer
#   SMOKE=1 scripts/multi_node/run_mpi.sh                          all of it in small, on the CPU of this machine
#
# This machine reaches the others by ssh without a password. The repository, OUT_DIR and DATA_DIR lie in folders that
# all of them share. RECIPE=scripts/run_gpt2_350M.sh trains another model than GPT-2 124M. Ctrl-C saves and ends; the
# same command goes on. NCCL_SOCKET_IFNAME=eth0 names the network to use; NCCL_DEBUG=INFO tells what NCCL does.
set -eu
cd "$(dirname "$0")/../.."
. scripts/common.sh
: "${HOSTS:=localhost}"                 # in the order of their ranks, this machine first
: "${RECIPE:=scripts/run_gpt2_124M.sh}" # what is trained
check_nodes
processes=$((GPUS * ${#hosts[@]}))
LAUNCH="mpirun -np $processes --host $(printf "%s:$GPUS\n" "${hosts[@]}" | paste -sd, -) $MPI_OPTIONS"
for variable in $(compgen -e NCCL_) LD_LIBRARY_PATH; do
    [ -z "${!variable:-}" ] || LAUNCH+=" -x $variable"
done
export LAUNCH GPUS=$processes
exec "$RECIPE" --nccl-init mpi "$@"
