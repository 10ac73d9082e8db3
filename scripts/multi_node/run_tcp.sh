#!/usr/bin/env bash
# Trains on all GPUs of several nodes without MPI, with all that scripts/run_gpt2_124M.sh does on one:
#
#   scripts/multi_node/run_tcp.sh                                           this machine
#   HOSTS="node1 node2" scripts/multi_node/run_tcp.sh [options]             on node1: starts the others over ssh
#   HOSTS="node1 node2" NODE=1 scripts/multi_node/run_tcp.sh [options]      without ssh: once on each, NODE=0, 1, ...
#   SMOKE=1 scripts/multi_node/run_tcp.sh                                   every stage in small, on the CPU
#
# [options]: further ones of the trainer. The repository lies in a folder that all hosts share. What is trained:
# common.sh beside this file. Ctrl-C saves and ends; the same command goes on. With NODE, the data have been fetched and
# the trainer has been built before: STAGES="build fetch" scripts/run_gpt2_124M.sh
set -eu
script=$(cd "$(dirname "$0")" && pwd)/${0##*/}
cd "${script%/*}/../.."
. scripts/multi_node/common.sh

HOSTS=${HOSTS:-localhost}      # in the order of their ranks
NODE=${NODE:-}                 # which of them this is; empty: the first, which starts the others
SERVER=${SERVER:-${HOSTS%% *}} # the first one's name or address, as the others reach it
PORT=${PORT:-29500}            # a free one there

read -r -a hosts <<<"$HOSTS"
NUM_NODES=${#hosts[@]}
case $NODE in
    "") ;;
    0) STAGES=${STAGES:-plan train export plot summary} ;;
    *[!0-9]*) stop "NODE is '$NODE', expected 0 to $((NUM_NODES - 1))" ;;
    *) STAGES=${STAGES:-plan train} ;;
esac
[ "${NODE:-0}" -lt "$NUM_NODES" ] || stop "NODE is '$NODE', expected 0 to $((NUM_NODES - 1)): HOSTS names $NUM_NODES"

launch_command() {
    train+=(--nccl-init tcp --server-ip "$SERVER:$PORT" --num-processes "$num_gpus" --gpus-per-node "$GPUS_PER_NODE")
    if [ -z "$NODE" ]; then
        launch=(scripts/multi_node/on_hosts.sh "$HOSTS" "$GPUS_PER_NODE" "${train[@]}")
    else
        if [ -z "${GPT2C_SECRET:-}" ]; then # the nodes share a folder: the processes know each other by a file in it
            mkdir -p "$OUT_DIR/start"
            share_secret_file "$OUT_DIR/start/secret"
            train+=(--secret-file "$OUT_DIR/start/secret")
        fi
        launch=(scripts/multi_node/local_ranks.sh $((NODE * GPUS_PER_NODE)) "$GPUS_PER_NODE" "${train[@]}")
    fi
}
run_stages "$@"
