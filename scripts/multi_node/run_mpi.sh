#!/usr/bin/env bash
# Trains on all GPUs of several nodes, started by mpirun (OpenMPI or MPICH), and restarts from the last checkpoint after
# a failure:
#
#   scripts/multi_node/run_mpi.sh                                     this machine
#   HOSTS="node1 node2" scripts/multi_node/run_mpi.sh [options]       further options of the trainer
#
# The repository, after `make train_gpt2cu`, lies in a folder that all hosts share; this one reaches the others by ssh
# without a password. What is trained: common.sh beside this file. Ctrl-C saves and ends.
set -eu
cd "$(dirname "$0")/../.."
. scripts/multi_node/common.sh

HOSTS=${HOSTS:-localhost} # in the order of their ranks
# NCCL_SOCKET_IFNAME=eth0 in the environment names the network to use; NCCL_DEBUG=INFO tells what NCCL does.

read -r -a hosts <<<"$HOSTS"
num_gpus=$((${#hosts[@]} * GPUS_PER_NODE))
train_command "$num_gpus" --nccl-init mpi "$@"

# Processes may use all cores of their node: they read data and watch each other in threads.
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    launch=(mpirun -np "$num_gpus" --host "$(printf "%s:$GPUS_PER_NODE\n" "${hosts[@]}" | paste -sd, -)" --bind-to none)
    for name in $(compgen -e NCCL_) LD_LIBRARY_PATH; do
        [ -z "${!name:-}" ] || launch+=(-x "$name")
    done
else
    launch=(mpirun -np "$num_gpus" -hosts "$(printf '%s\n' "${hosts[@]}" | paste -sd, -)" -ppn "$GPUS_PER_NODE")
fi
exec scripts/restart.sh "${launch[@]}" "${train[@]}"
