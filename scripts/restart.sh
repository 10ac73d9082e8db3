#!/usr/bin/env bash
# Starts a training command again and again, each time from its last checkpoint, until it ends with status 0:
#
#   scripts/restart.sh ./train_gpt2cu --train-data 'shards/*_train_*.bin' --out-dir run --checkpoint-every 500
#   scripts/restart.sh mpirun -np 8 ./train_gpt2cu --train-data 'shards/*_train_*.bin' --out-dir run ...
#
# The command gets --resume, which in a folder without checkpoints starts from the beginning. Two starts one after the
# other that leave no new checkpoint in --out-dir are the last: what stands in the way is then no accident. Otherwise
# MAX_STARTS (20) in all, with a pause before the next that grows from PAUSE (10) seconds to 300.
#
# A first Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 goes to the command as SIGUSR1, on which the trainer saves and ends, and
# which mpirun and srun hand on to all processes; a second one as SIGTERM. After either there is no further start.
# Exit status: the command's last.
set -u
export LC_ALL=C
# shellcheck source=scripts/children.sh
. "$(dirname "$0")/children.sh"

say() { echo "restart.sh: $(date '+%Y-%m-%d %H:%M:%S') $*" >&2; }

stop() { # message...: ends the script before any start
    echo "restart.sh: $*" >&2
    exit 1
}

# Sets out_dir from the command's words, of which the trainer takes the last.
read_command() {
    local word before=""
    out_dir=""
    for word in "$@"; do
        case $before in --out-dir | -o) out_dir=$word ;; esac
        case $word in
            --out-dir=*) out_dir=${word#*=} ;;
            --overwrite) stop "--overwrite: would begin anew with every start; leave it out" ;;
        esac
        before=$word
    done
    [ -n "$out_dir" ] || stop "the command has no --out-dir (-o), the folder of the checkpoints to go on from"
}

# Open MPI starts nothing as root unless it is told to.
check_root() { # COMMAND...
    [ "$(id -u)" -eq 0 ] && [ "${1##*/}" = mpirun ] && [ -z "${OMPI_ALLOW_RUN_AS_ROOT:-}" ] || return 0
    case " $* " in *" --allow-run-as-root "*) return 0 ;; esac
    "$1" --version 2>/dev/null | grep -q 'Open MPI' || return 0
    stop "mpirun: refuses to run as root; in a container, give it --allow-run-as-root, elsewhere use another account"
}

# Every checkpoint with inode, size and time: another one saved under the name of an old one is new, too.
checkpoints() {
    [ -d "$out_dir" ] || return 0
    find "$out_dir" -maxdepth 1 -name 'state_*.bin' -exec ls -li {} + 2>/dev/null | sort
}

# shellcheck disable=SC2034 # read in children.sh
first_signal=USR1
# shellcheck disable=SC2317 # called by a trap
on_signal() { say "SIG$1: stopping $([ "$signals" -eq 1 ] && echo 'in order; once more: at once' || echo 'at once')"; }
take_signals

case ${1:-} in
    "" | -h | --help) sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0"; exit $(($# == 0)) ;;
esac
max_starts=${MAX_STARTS:-20} pause=${PAUSE:-10}
check_restarts
read_command "$@"
check_root "$@"
command -v -- "$1" >/dev/null || stop "$1: no such program; \`make help\` says how each trainer is built"
set -- "$@" --resume

status=1 failures=0
for ((start = 1; start <= max_starts; start++)); do
    saved=$(checkpoints)
    say "start $start of $max_starts, from step $(newest_step "$out_dir"): $*"
    began=$SECONDS
    run_child "$@"
    [ $status -ne 0 ] || exit 0
    say "status $status after $((SECONDS - began)) s"
    [ "$signals" -eq 0 ] || exit $status

    failures=$((failures + 1))
    if [ "$(checkpoints)" != "$saved" ]; then failures=0; fi
    if [ $failures -ge 2 ]; then
        say "given up: two starts without a new checkpoint in $out_dir"
        exit $status
    fi
    if [ "$start" -lt "$max_starts" ] && [ "$pause" -gt 0 ]; then
        say "next start in $pause s"
        for ((second = 0; second < pause; second++)); do
            [ "$signals" -eq 0 ] || exit $status
            sleep 1
        done
        [ "$signals" -eq 0 ] || exit $status
        pause=$((pause < 150 ? 2 * pause : 300))
    fi
done
say "given up: $max_starts starts"
exit $status
