# shellcheck shell=bash
# Installing what is missing, for the other scripts to source. Only Debian and Ubuntu (apt-get); elsewhere it says what
# is needed. Nothing is installed that the caller did not name.

have() { # COMMAND...: true if every one of them is there
    local name
    for name in "$@"; do command -v "$name" >/dev/null 2>&1 || return 1; done
}

links() { # COMPILER FLAGS...: true if the compiler builds an empty program with these flags, libraries included
    local folder status=0
    folder=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_probe.XXXXXX")
    echo 'int main(void) { return 0; }' >"$folder/probe.c"
    "$@" "$folder/probe.c" -o "$folder/probe" >/dev/null 2>&1 || status=1
    rm -rf "$folder"
    return $status
}

# install_packages WHY PACKAGE...: returns non-zero, having said what to do, when it cannot.
install_packages() {
    local why=$1 root=() log
    shift
    if ! have apt-get; then
        echo "Missing: $* ($why). There is no apt-get here; please install them with this system's package manager."
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        root=(sudo)
        [ -t 0 ] || root=(sudo -n) # without a terminal nobody can type a password: fail at once instead of waiting
    fi
    if ! have "${root[@]:0:1}"; then
        echo "Missing: $* ($why). Please install them as root and start again:"
        echo "    apt-get update && apt-get install $*"
        return 1
    fi
    echo "Installing $* ($why) ..."
    log=$(mktemp "${TMPDIR:-/tmp}/gpt2c_apt.XXXXXX")
    if { "${root[@]+"${root[@]}"}" apt-get update && "${root[@]+"${root[@]}"}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    tail -n 5 "$log"
    echo "Could not install $* (the whole output: $log). Please try as root: apt-get update && apt-get install $*"
    return 1
}
