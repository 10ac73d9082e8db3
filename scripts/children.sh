# shellcheck shell=bash
# For scripts that start the trainer; they source this file: waiting for children while signals arrive, and the secret
# that they share. Their traps count in `signals`.

signals=0 first_signal=TERM child="" child_began=0 passed_on=0

# wait_for PID: sets status to how the child has ended. A trap ends bash's wait before the child has.
wait_for() {
    local before
    while :; do
        before=$signals
        status=0
        wait "$1" 2>/dev/null || status=$?
        [ "$signals" -ne "$before" ] || return 0
    done
}

# wait_for_all PID...: when all have ended, sets status to that of the first one named that failed.
wait_for_all() {
    local child result=0
    for child in "$@"; do
        wait_for "$child"
        [ "$result" -ne 0 ] || result=$status
    done
    status=$result
}

# signal_children NAME PID...: those that still run get it.
signal_children() {
    local name=$1 child
    shift
    for child in "$@"; do kill -s "$name" "$child" 2>/dev/null || true; done
}

# take_signals: they count, are told to the script's on_signal, and go on to the child of run_child: a first one as
# $first_signal, others as TERM.
take_signals() {
    local name
    for name in HUP INT TERM USR1; do
        # shellcheck disable=SC2064 # the name of now
        trap "signals=\$((signals + 1)); on_signal $name; pass_on" $name
    done
}

# A child that has just been forked still has the script's traps, in which a signal would be lost: it gets a second.
pass_on() {
    if [ -z "$child" ] || [ "$passed_on" -eq "$signals" ]; then return; fi
    [ $((SECONDS - child_began)) -ge 2 ] || sleep 1
    passed_on=$signals
    signal_children "$([ "$signals" -eq 1 ] && echo "$first_signal" || echo TERM)" "$child"
}

# run_child COMMAND...: sets status. The child has a group of its own: Ctrl-C reaches it through the script only, as
# mpirun would kill what is still saving.
run_child() {
    child_began=$SECONDS
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    pass_on # a signal that came before the command did
    wait_for $child
    child=""
}

newest_step() { # FOLDER: the step of its last checkpoint, 0 without one
    local step
    step=$(find "$1" -maxdepth 1 -name 'state_*.bin' 2>/dev/null | sed -n 's/.*state_0*\([0-9][0-9]*\)\.bin$/\1/p' |
        sort -n | tail -n 1)
    echo "${step:-0}"
}

new_secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# share_secret: exports GPT2C_SECRET, by which the processes of a TCP start know each other. It must never be a word of
# a command, which everybody on a machine can see.
share_secret() {
    GPT2C_SECRET=${GPT2C_SECRET:-$(new_secret)}
    export GPT2C_SECRET
}

# share_secret_file FILE: a file with a secret, for this user only. Of several nodes that make it, the first one does.
share_secret_file() {
    local own
    own=$(mktemp "$1.XXXXXX")
    new_secret >"$own"
    ln "$own" "$1" 2>/dev/null || true
    rm -f "$own"
}

check_restarts() { # the settings of restart.sh; reproduce.sh checks them before hours have passed
    case ${MAX_STARTS:-20} in
        0* | *[!0-9]* | ??????*) stop "MAX_STARTS is '$MAX_STARTS', expected 1 to 99999" ;;
    esac
    case ${PAUSE:-10} in *[!0-9]* | ????*) stop "PAUSE is '$PAUSE', expected whole seconds, 0 to 999" ;; esac
}
