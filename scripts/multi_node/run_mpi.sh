#!/usr/bin/env bash
# Trains on all GPUs of several nodes, started by Open MPI's mpirun, with all that scripts/run_gpt2_124M.sh does
# on one:
#
#   scripts/multi_node/run_mpi.sh                                     this machine
#   HOSTS="node1 node2" scripts/multi_node/run_mpi.sh [options]       on node1; further options of the trainer
#   SMOKE=1 scripts/multi_node/run_mpi.sh                             every stage in small, on the CPU
#
# The repository lies in a folder that all hosts share; this one reaches the others by ssh without a password. What is
# trained: common.sh beside this file. Ctrl-C saves and ends; the same command goes on.
set -eu
script=$(cd "$(dirname "$0")" && pwd)/${0##*/}
cd "${script%/*}/../.."
. scripts/multi_node/common.sh

HOSTS=${HOSTS:-localhost} # in the order of their ranks, this one first
# NCCL_SOCKET_IFNAME=eth0 in the environment names the network to use; NCCL_DEBUG=INFO tells what NCCL does.

read -r -a hosts <<<"$HOSTS"
NUM_NODES=${#hosts[@]}

# Sets launch. Processes may use all cores of their node: they read data and watch each other in threads.
launch_command() {
    launch=(mpirun -np "$num_gpus" --host "$(printf "%s:$GPUS_PER_NODE\n" "${hosts[@]}" | paste -sd, -)" --bind-to none)
    for name in $(compgen -e NCCL_) LD_LIBRARY_PATH; do
        [ -z "${!name:-}" ] || launch+=(-x "$name")
    done
    if [ "$(id -u)" -eq 0 ]; then # as in most containers
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    launch+=(${MPIRUN_OPTIONS[@]+"${MPIRUN_OPTIONS[@]}"} "${train[@]}" --nccl-init mpi)
}
run_stages "$@"
