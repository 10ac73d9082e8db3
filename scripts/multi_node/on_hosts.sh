#!/usr/bin/env bash
# Starts the processes of several nodes, without MPI, from the first of them:
#
#   scripts/multi_node/on_hosts.sh "HOST0 HOST1 ..." COUNT COMMAND...
#
# COUNT processes on each host (local_ranks.sh), on the first without ssh, on the others over ssh in the same folder.
# SIGUSR1 and SIGTERM go to the processes here: the trainer saves and ends on all nodes when one is told to. Ends when
# all have ended, with the status of the first host that failed. The processes share a secret (GPT2C_SECRET), which the
# other hosts read from ssh's standard input.
set -u
. scripts/children.sh

read -r -a hosts <<<"${1:?HOSTS, COUNT of processes on each, COMMAND}"
count=${2:?COUNT of processes on each host, COMMAND}
shift 2

quoted() { printf "'%s' " "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

# What ssh leaves behind: the folder, and where NCCL, the libraries and the emulator are told what to do.
line="cd $(quoted "$PWD") && exec env"
for name in $(compgen -e NCCL_) $(compgen -e EMU_) $(compgen -e OMP_) LD_LIBRARY_PATH; do
    [ -z "${!name:-}" ] || line="$line $(quoted "$name=${!name}")"
done
# A host that is gone is noticed within a minute, as the trainer notices it.
ssh_options=(-o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4)
share_secret
read_secret='IFS= read -r GPT2C_SECRET && export GPT2C_SECRET && exec "$@"'
words=""
for word in "$@"; do words="$words $(quoted "$word")"; done

children=("")
trap 'signals=$((signals + 1)); signal_children USR1 "${children[0]}"' USR1
trap 'signals=$((signals + 1)); signal_children TERM "${children[@]}"' TERM
scripts/multi_node/local_ranks.sh 0 "$count" "$@" &
children=($!)
for ((i = 1; i < ${#hosts[@]}; i++)); do
    # shellcheck disable=SC2029 # the words are to be put in here
    ssh "${ssh_options[@]}" "${hosts[$i]}" \
        "$line sh -c $(quoted "$read_secret") sh scripts/multi_node/local_ranks.sh $((i * count)) $count $words" \
        < <(printf '%s\n' "$GPT2C_SECRET") &
    children+=($!)
done
wait_for_all "${children[@]}"
exit "$status"
