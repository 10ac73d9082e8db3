#!/usr/bin/env bash
# The GPU trainer compiles for real, with nvcc, warnings being errors. It links with NCCL, cuDNN and MPI where these are
# and without them, and starts. Prints what each kernel takes of a multiprocessor, and fails if one spills registers to
# memory. Without nvcc: skipped.
#
#   dev/test/programs/test_nvcc.sh               in BF16, optimised, for sm_80 and sm_90; in FP32 without libraries
#   dev/test/programs/test_nvcc.sh BF16          one precision
#   dev/test/programs/test_nvcc.sh --table       what was printed by the last run of each
#   TEST_QUICK=1 dev/test/programs/test_nvcc.sh  the trainer in BF16 as PTX of sm_90, not optimised
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../../.."

readonly ARCHS="80 90"
readonly QUICK="-O0 -Xptxas -O0 -Xcicc -O0" # not optimised, in a fifth of the time
precisions=${*:-BF16 FP32}
quick=${TEST_QUICK:-}
passed=0 failed=0 skipped=0

ok() {
    passed=$((passed + 1))
    echo "ok   nvcc: $*"
}
bad() {
    failed=$((failed + 1))
    echo "FAIL nvcc: $*"
}

skip() {
    skipped=$((skipped + 1))
    echo "skip nvcc: $*"
}

# What ptxas says of a kernel takes three lines; of them: kernel precision arch registers shared spilled.
# shellcheck disable=SC2016 # awk's variables
resources() { # precision, log
    c++filt <"$2" | awk -v precision="$1" '
        /Compiling entry function/ {
            name = $0
            sub(/^[^\047]*\047(void )?/, "", name)
            arch = name
            sub(/.*\047 for \047/, "", arch)
            sub(/\047.*/, "", arch)
            sub(/\(.*/, "", name) # the parameters
            gsub(/ /, "", name)
        }
        /bytes spill stores/ { spilled = $5 + $9 }
        /Used [0-9]+ registers/ {
            shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
            match($0, /Used [0-9]+/)
            print name, precision, arch, substr($0, RSTART + 5) + 0, shared, spilled
        }' | sort -u
}

check_spills() { # precision, table
    local name spilled arch
    while read -r name _ arch _ _ spilled; do
        [ "$spilled" -gt 0 ] || continue
        bad "$1: $name spills $spilled bytes on $arch: registers are short; smaller tiles, or a launch bound"
        return
    done <"$2"
    if [ -s "$2" ]; then ok "$1: no kernel spills"; else bad "$1: nothing from ptxas about kernels in $log"; fi
}

# A line per kernel: static shared memory, then registers for each precision and GPU, and + what it spills.
print_table() {
    awk '
        {
            column = $2 " " $3
            if (!(column in seen)) { seen[column] = 1; columns[++num_columns] = column }
            if (!($1 in shared)) { names[++num_names] = $1; shared[$1] = $5 }
            cell[$1, column] = $4 ($6 > 0 ? "+" $6 : "")
        }
        END {
            printf "%-50s %6s", "registers, + bytes spilled", "shared"
            for (i = 1; i <= num_columns; i++) { printf " %11s", columns[i] }
            printf "\n"
            for (n = 1; n <= num_names; n++) {
                printf "%-50s %6d", names[n], shared[names[n]]
                for (i = 1; i <= num_columns; i++) { printf " %11s", cell[names[n], columns[i]] }
                printf "\n"
            }
        }' build/nvcc_*/kernels
}

if [ "$precisions" = --table ]; then
    print_table
    exit 0
fi
nvcc=$(PATH=${CUDA_HOME:+$CUDA_HOME/bin:}$PATH:/usr/local/cuda/bin:/opt/cuda/bin command -v nvcc) || nvcc=""
if [ -z "$nvcc" ]; then
    echo "skip nvcc: not here: the CUDA files were compiled for the emulator only"
    echo "nvcc: 0 passed, 0 failed, 1 skipped"
    exit 0
fi

# builds PRECISION PROGRAM ARCHS FLAGS SWITCHES...: one verdict; what the compilers say goes to $log.
builds() {
    local switches="${*:5}"
    rm -f "$folder/$2"
    if make WERROR=1 NVCC="$nvcc" PRECISION="$1" GPU_ARCH="$3" NVCCFLAGS="$4" "BUILD=$folder" "BIN=$folder" \
        "${@:5}" "$folder/$2" >"$log" 2>&1; then
        ok "$1: $2 for sm_${3// / and sm_}${switches:+, $switches}"
    else
        grep -E 'error|warning|Error' "$log" | head -n 12 || tail -n 12 "$log"
        bad "$1: $2 does not compile for sm_${3// / and sm_}${switches:+, $switches}"
    fi
}

needs() { readelf -d "$1" | grep -q "NEEDED.*\[$2\.so"; } # PROGRAM LIBRARY

# --help reads no GPU, but the program's libraries must be found.
starts() { # precision, folder
    if "$2/train_gpt2cu" --help >"$2/help" 2>&1 && grep -q '^Usage: train_gpt2cu' "$2/help"; then
        ok "$1: train_gpt2cu starts"
    else
        head -n 3 "$2/help"
        bad "$1: $2/train_gpt2cu --help does not run"
    fi
}

# What the Makefile must find, looked for in another way.
has_nccl() {
    [ -e "${NCCL_HOME:-$(dirname "$nvcc")/..}/include/nccl.h" ] || [ -e /usr/include/nccl.h ]
}
has_cudnn() {
    [ -e "${CUDNN_HOME:-$(dirname "$nvcc")/..}/include/cudnn.h" ] || [ -e /usr/include/cudnn.h ]
}
has_mpi() { command -v mpicc >/dev/null 2>&1 || [ -n "${MPI_HOME:-}" ]; }

# linked_with PRECISION PROGRAM SWITCH LIBRARY FOUND: it needs the library, if FOUND (a command) says that it is here.
linked_with() {
    if ! $5; then
        skip "$1: not linked with $3, which is not here"
    elif needs "$2" "$4"; then
        ok "$1: linked with $3"
    else
        bad "$1: $2 is not linked with $4, although $3 is here"
    fi
}

# Ranks on machines that build for themselves must get equal files: without the random names of temporary files.
check_names() { # precision, program
    if grep -q tmpxft "$2"; then
        bad "$1: $2 has the name of a temporary file in it, and no two builds are equal"
    else
        ok "$1: nothing random in train_gpt2cu"
    fi
}

# The trainer without libraries and not optimised: kernels in the other precision, and the code that stands in for NCCL.
builds_alone() { # precision, folder
    local library
    builds "$1" train_gpt2cu 90 "$QUICK" NCCL=0 MPI=0 CUDNN=0
    for library in libnccl libmpi libcudnn; do
        if needs "$2/train_gpt2cu" $library; then bad "$1: linked with $library in spite of NCCL=0 MPI=0 CUDNN=0"; fi
    done
    starts "$1, NCCL=0 MPI=0 CUDNN=0" "$2"
}

# The trainer, and what it is linked with.
builds_trainer() { # precision, folder, archs, flags, make's variables
    builds "$1" train_gpt2cu "${@:3}"
    starts "$1" "$2"
    linked_with "$1" "$2/train_gpt2cu" NCCL libnccl has_nccl
    linked_with "$1" "$2/train_gpt2cu" MPI libmpi has_mpi
    linked_with "$1" "$2/train_gpt2cu" cuDNN libcudnn has_cudnn
    linked_with "$1" "$2/train_gpt2cu" NVRTC libnvrtc has_cudnn # cuDNN opens it by itself
    check_names "$1" "$2/train_gpt2cu"
}

[ -z "$quick" ] || precisions=BF16
for precision in $precisions; do
    folder=build/nvcc_${quick:+quick_}$precision
    mkdir -p "$folder"
    log=$folder/trainer.log
    if [ "$precision" = FP32 ]; then
        builds_alone FP32 "$folder"
    elif [ -n "$quick" ]; then
        builds_trainer BF16 "$folder" 90 "$QUICK" GENCODE="-gencode arch=compute_90,code=compute_90"
    else
        builds_trainer BF16 "$folder" "$ARCHS" "-Xcompiler -Og -Xptxas -v"
        resources BF16 "$log" >"$folder/kernels.new"
        [ ! -s "$folder/kernels.new" ] || mv "$folder/kernels.new" "$folder/kernels" # else nothing was compiled
        check_spills BF16 "$folder/kernels"
    fi
    [ -n "$quick" ] || builds "$precision" test_llama3cu 90 "$QUICK" NCCL=0 MPI=0 CUDNN=0 # and the trainer in it
done

[ ! -s build/nvcc_BF16/kernels ] || [ -n "$quick" ] || print_table
echo "nvcc: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
