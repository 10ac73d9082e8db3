#!/usr/bin/env bash
# Starts the processes of one node, without MPI:
#
#   scripts/multi_node/local_ranks.sh FIRST COUNT COMMAND...
#
# COUNT times COMMAND, with --process-rank FIRST, FIRST + 1 and so on. Hands SIGUSR1 and SIGTERM on to all of them. Ends
# when all have ended, with the status of the first that failed. One that fails ends the others by itself.
set -u
. scripts/children.sh

first=${1:?FIRST rank, COUNT of ranks, COMMAND} count=${2:?COUNT of ranks, COMMAND}
shift 2

children=()
trap 'signals=$((signals + 1)); signal_children USR1 "${children[@]+"${children[@]}"}"' USR1
trap 'signals=$((signals + 1)); signal_children TERM "${children[@]+"${children[@]}"}"' TERM
for ((i = 0; i < count; i++)); do
    "$@" --process-rank $((first + i)) </dev/null &
    children+=($!)
done
wait_for_all "${children[@]}"
exit "$status"
