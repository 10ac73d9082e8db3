#!/bin/sh
# Says what make finds here for each program, and how to get what is missing. Exit status 1: there is no C compiler.
# shellcheck shell=dash
cd "$(dirname "$0")/.." || exit 1
. dev/find_libraries.sh

compilers() { # LANGUAGE FLAG COMPILER...: those that build a program with this flag
    language=$1 flag=$2
    shift 2
    for compiler; do ! builds "$language" "$empty" "$compiler" "$flag" || command -v "$compiler"; done
}

finds() { # WHAT: what dev/find_libraries.sh says, and the path of each library instead of the words for make
    dev/find_libraries.sh "$1" 2>&1 | awk '
        /LIBS\+=-L/ { place = $0; sub(/.*-L/, "", place) }
        /LIBS\+=-l/ { file = $0; sub(/.*-l:?(lib)?/, "lib", file); print place "/" file }
        !/(CUDA|MPI)_(FLAGS|LIBS)/'
}

say() { # NEEDS COMMAND...: what a command prints is here
    printf '\n%s\n' "$1"
    shift
    "$@" >"$scratch/here" 2>/dev/null
    [ -s "$scratch/here" ] || echo nothing here >"$scratch/here"
    sed 's/^/    /' "$scratch/here"
}

say "make: gcc or clang (apt-get install gcc libc6-dev)" compilers c -O0 gcc clang cc
say "OpenMP, for all cores instead of one (gcc has it; clang: libomp-dev, brew install libomp)" finds openmp
say "make train_gpt2emu: Linux on x86_64 or aarch64, g++ or clang++ (apt-get install g++)" \
    compilers c++ -std=c++17 g++ clang++
say "make train_gpt2cu: CUDA 12 or later with cuBLASLt; for many GPUs NCCL, for attention cuDNN 9 and NVRTC" finds cuda
say "to run it: a GPU of compute capability 8.0 (Ampere) or later, and its driver (https://www.nvidia.com/drivers)" \
    nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader
say "MPI, which starts ranks (apt-get install openmpi-bin libopenmpi-dev; MPI_HOME=/folder)" finds mpi
[ -n "$(compilers c -O0 gcc clang cc)" ]
