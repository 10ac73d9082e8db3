#!/usr/bin/env bash
# Trains on all GPUs of several nodes without MPI, and restarts from the last checkpoint after a failure:
#
#   scripts/multi_node/run_tcp.sh                                           this machine
#   HOSTS="node1 node2" scripts/multi_node/run_tcp.sh [options]             on node1: starts the others over ssh
#   HOSTS="node1 node2" NODE=1 scripts/multi_node/run_tcp.sh [options]      without ssh: once on each, NODE=0, 1, ...
#
# The repository, after `make train_gpt2cu`, lies in a folder that all hosts share. What is trained: common.sh beside
# this file. Ctrl-C saves and ends.
set -eu
cd "$(dirname "$0")/../.."
. scripts/multi_node/common.sh

HOSTS=${HOSTS:-localhost}      # in the order of their ranks
NODE=${NODE:-}                 # which of them this is; empty: the first, which starts the others
SERVER=${SERVER:-${HOSTS%% *}} # the first one's name or address, as the others reach it
PORT=${PORT:-29500}            # a free one there

read -r -a hosts <<<"$HOSTS"
num_gpus=$((${#hosts[@]} * GPUS_PER_NODE))
train_command "$num_gpus" --nccl-init tcp --server-ip "$SERVER:$PORT" --num-processes "$num_gpus" \
    --gpus-per-node "$GPUS_PER_NODE" "$@"

case $NODE in
    "") exec scripts/restart.sh scripts/multi_node/on_hosts.sh "$HOSTS" "$GPUS_PER_NODE" "${train[@]}" ;;
    *[!0-9]*) stop "NODE is '$NODE', expected 0 to $((${#hosts[@]} - 1))" ;;
esac
[ "$NODE" -lt ${#hosts[@]} ] || stop "NODE is '$NODE', expected 0 to $((${#hosts[@]} - 1)): HOSTS names ${#hosts[@]}"
exec scripts/restart.sh scripts/multi_node/local_ranks.sh $((NODE * GPUS_PER_NODE)) "$GPUS_PER_NODE" "${train[@]}"
