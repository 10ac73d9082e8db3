# shellcheck shell=bash
# For scripts that start the trainer; they source this file: waiting for children while signals arrive, and the secret
# that they share. Their traps count in `signals`.

signals=0

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
