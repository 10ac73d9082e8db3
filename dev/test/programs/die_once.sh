#!/usr/bin/env bash
# Lets a process of an emulated run die, once: dev/test/programs/die_once.sh FILE N COMMAND... kills rank 1 of COMMAND
# at its N-th collective, unless FILE is there, which it then makes. scripts/reproduce.sh with SMOKE=1 starts again
# after it.
set -eu
if [ ! -e "$1" ]; then
    : >"$1"
    export EMU_NCCL_FAULT=die@1:$2
fi
exec "${@:3}"
