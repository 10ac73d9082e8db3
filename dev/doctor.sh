#!/usr/bin/env bash
# Says what of the software that gpt2.c can use is on this machine: what was found, what it is for, how to get it.
# Exit status 1 only when something is missing without which nothing can be built.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh

missing_needed=0

# row NAME NEED FOUND PURPOSE DEBIAN MACOS: one entry; an empty FOUND means it is missing.
row() {
    local mark=found
    if [ -z "$3" ]; then
        mark=missing
        [ "$2" != needed ] || missing_needed=1
    fi
    printf '%-9s %-10s %s\n' "$1" "$mark" "${3:-}"
    printf '%20s %s: %s\n' "" "$2" "$4"
    if [ -z "$3" ]; then
        [ -z "$5" ] || printf '%20s Debian/Ubuntu: %s\n' "" "$5"
        [ -z "$6" ] || printf '%20s macOS: %s\n' "" "$6"
    fi
}

version_of() { # COMMAND [ARGUMENT]: the first line it prints about itself; nothing if there is no such command
    have "$1" || return 0
    "$1" "${2:---version}" 2>/dev/null | head -n 1
}

# find_file NAME...: the first of these files in the folders where headers and libraries usually lie.
find_file() {
    local folder name
    for name in "$@"; do
        for folder in /usr/include /usr/local/include /usr/include/* /usr/local/cuda/include /opt/cuda/include \
            /usr/lib /usr/lib64 /usr/local/lib /usr/lib/*-linux-gnu* /usr/local/cuda/lib64 /opt/homebrew/lib \
            /opt/homebrew/opt/*/lib; do
            if [ -e "$folder/$name" ]; then
                echo "$folder/$name"
                return
            fi
        done
    done
}

openmp_of() { # the compilers here that build an OpenMP program
    local compiler found="" libomp
    for compiler in gcc clang; do
        if have "$compiler" && links "$compiler" -fopenmp; then found="$found $compiler"; fi
    done
    if [ -z "$found" ] && have brew && libomp=$(brew --prefix libomp 2>/dev/null) && [ -e "$libomp/lib/libomp.dylib" ]
    then
        found=" clang with $libomp"
    fi
    [ -z "$found" ] || echo "with$found"
}

working() { # COMPILER: its version, if it links a program
    have "$1" && links "$1" && version_of "$1"
}

compiler=$(working gcc)
[ -n "$compiler" ] || compiler=$(working clang)

echo "Building and running on the CPU"
row compiler needed "$compiler" "gcc or clang builds everything" "apt-get install gcc libc6-dev" \
    "xcode-select --install"
row make needed "$(version_of make)" "GNU make 3.81 or later" "apt-get install make" "xcode-select --install"
row OpenMP optional "$(openmp_of)" "all cores instead of one" "comes with gcc; for clang: apt-get install libomp-dev" \
    "brew install libomp"
echo
echo "Testing and comparing"
row clang optional "$(working clang)" "scripts/test.sh builds with both compilers; make fuzz FUZZ_SECONDS=..." \
    "apt-get install clang" "xcode-select --install"
row g++ optional "$(working g++)" "checks that the headers are C++17 as well" "apt-get install g++" \
    "xcode-select --install"
row python3 optional "$(version_of python3)" "tests that run the programs and read their files; needs no packages" \
    "apt-get install python3" "brew install python"
row OpenBLAS optional "$(find_file libopenblas.so libopenblas.so.0 libopenblas.dylib)" \
    "make bench-cpu compares the matrix multiply with it; nothing links it" "apt-get install libopenblas0" \
    "brew install openblas"
echo
echo "For the GPU trainer, which is not part of this version"
row nvcc later "$(nvcc --version 2>/dev/null | grep release)" "compiles CUDA" \
    "https://developer.nvidia.com/cuda-downloads" ""
row cuBLASLt later "$(find_file cublasLt.h)" "matrix multiplies on the GPU" "comes with the CUDA toolkit" ""
row cuDNN later "$(find_file cudnn.h)" "attention on the GPU, optional" \
    "apt-get install libcudnn9-dev-cuda-12 (NVIDIA's repository)" ""
row NCCL later "$(find_file nccl.h)" "several GPUs, optional" "apt-get install libnccl-dev (NVIDIA's repository)" ""
row MPI later "$(version_of mpirun)" "starts one process per GPU, optional" \
    "apt-get install libopenmpi-dev openmpi-bin" ""
echo
if [ $missing_needed -ne 0 ]; then
    echo "Something needed is missing; see above."
    exit 1
fi
echo "Everything needed is here: make, then ./train_gpt2 --help, or scripts/quickstart.sh"
