# shellcheck shell=bash
# Installing what is missing on Debian and Ubuntu, for the other scripts to source. Elsewhere it says what is needed.

have() { # COMMAND...: true if every one of them is there
    local name
    for name in "$@"; do command -v "$name" >/dev/null 2>&1 || return 1; done
}

links() { # COMPILER FLAGS...: true if the compiler builds an empty program with these flags, libraries included
    local program status=0
    program=$(mktemp "${TMPDIR:-/tmp}/gpt2c_probe.XXXXXX")
    echo 'int main(void) { return 0; }' | "$@" -x c - -o "$program" >/dev/null 2>&1 || status=1
    rm -f "$program"
    return $status
}

# install_packages WHY PACKAGE...: returns non-zero, having said what to do, when it cannot.
# shellcheck disable=SC2086 # sudo and its option are words, or none
install_packages() {
    local why=$1 sudo="" log
    shift
    [ "$(id -u)" -eq 0 ] || sudo="sudo -n" # without a terminal nobody can type a password: it fails, and does not wait
    [ ! -t 0 ] || sudo=${sudo% -n}
    if have apt-get ${sudo% -n}; then
        echo "Installing $* ($why) ..."
        log=$(mktemp "${TMPDIR:-/tmp}/gpt2c_apt.XXXXXX")
        if { $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
            rm -f "$log"
            return 0
        fi
        tail -n 5 "$log"
    fi
    echo "Missing: $* ($why). Please install them and start again; on Debian and Ubuntu, as root:"
    echo "    apt-get update && apt-get install $*"
    return 1
}
