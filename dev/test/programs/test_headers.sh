#!/usr/bin/env bash
# Every header of llmc/ stands alone: it compiles without a warning as C11, and two objects that include all of them
# link (nothing but `static inline` in a header), as C++17, too (the CUDA trainer includes the same headers, and MPI
# where it is). The CUDA headers as C++17 with the emulator's compiler (test_nvcc.sh compiles them with nvcc).
# A compiler that is missing is skipped. Arguments: headers to check, not all. With TEST_QUICK in the environment: all
# together only, as C11.
set -eu
cd "$(dirname "$0")/../../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_headers.XXXXXX")
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

report() { # verdict, what
    case $1 in
        "ok  ") passed=$((passed + 1)) ;;
        FAIL) failed=$((failed + 1)) ;;
        skip) skipped=$((skipped + 1)) ;;
    esac
    echo "$1 headers: $2"
}

# The functions below take WHAT SUFFIX COMMAND...: words for the report, the suffix of a source, a compiler and flags.

cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# compile_one NUMBER HEADER SUFFIX COMMAND...: what the compiler says goes to a file of this header, if it fails.
compile_one() {
    local messages=$work/$1.messages source=$work/$1.$3
    echo "#include \"$2\"" >"$source"
    "${@:4}" -I. "$source" >"$messages" 2>&1 && rm "$messages" || echo "$2" >"$work/$1.bad"
}

# One verdict for all the headers, each on its own, as many at once as there are cores.
compile_alone() {
    local what=$1 suffix=$2 i bad
    shift 2
    for i in "${!alone[@]}"; do
        compile_one "$i" "${alone[i]}" "$suffix" "${@//%o/$work/$i.o}" &
        [ $(((i + 1) % cores)) -ne 0 ] || wait
    done
    wait
    bad=$(cat "$work"/*.bad 2>/dev/null | tr '\n' ' ')
    if [ -n "$bad" ]; then
        head -q -n 12 "$work"/*.messages
        report FAIL "$what: does not compile alone: $bad"
    else
        report "ok  " "$what: alone"
    fi
    rm -f "$work"/*.bad "$work"/*.messages
}

# One verdict for all of them together in two objects, but for the second model's tables and the CPU trainers' program.
link_two_objects() {
    local what=$1 a=$work/a.$2 b=$work/b.$2
    shift 2
    printf '#include "%s"\n' "${headers[@]}" | grep -v 'llama3.h\|program.h\|program.cuh' >"$b"
    echo 'int second(void) { return 0; }' >>"$b"
    { cat "$b"; echo 'int main(void) { return second(); }'; } | sed 's/^int second.*/int second(void);/' >"$a"
    if "$@" -I. "$a" "$b" -o "$work/linked" >"$work/messages" 2>&1; then
        report "ok  " "$what: all of them in two objects, linked"
    else
        head -n 12 "$work/messages"
        report FAIL "$what: two objects that include all headers do not link"
    fi
}

# compiles COMPILER SUFFIX FLAGS...: both, if the compiler is there and knows these flags.
compiles() {
    local what suffix=$2 command=("$1" "${@:3}")
    what=$(sed 's/ -isystem [^ ]*//g; s/ -[lL][^ ]*//g; s/ -D[OM][^ ]*//g' <<<"$1 ${*:3}")
    if ! command -v "$1" >/dev/null 2>&1; then
        report skip "$what: no $1 here"
        return
    fi
    echo 'int main(void) { return 0; }' >"$work/probe.$suffix"
    case $what in *-fopenmp*) echo '#include <omp.h>' >>"$work/probe.$suffix" ;; esac
    if ! "${command[@]}" "$work/probe.$suffix" -o "$work/probe" 2>/dev/null; then
        report skip "$what: not possible with this compiler"
        return
    fi
    [ -n "${TEST_QUICK:-}" ] || [ "$suffix" = cc ] ||
        compile_alone "$what" "$suffix" "${command[@]}" -Wall -Wextra -Werror -fsyntax-only
    link_two_objects "$what" "$suffix" "${command[@]}" -Wall -Wextra -Werror -pthread -lm
}

compiles_emulated() { # compiler
    local flags=(-O0 -g0 -DUSE_NCCL -Wall -Wextra -Werror -Wno-unknown-pragmas)
    export CXX=$1
    if ! command -v "$1" >/dev/null 2>&1; then
        report skip "emulator: no $1 here"
        return
    fi
    compile_alone "emulator $1" cu dev/emu/emucc "${flags[@]}" -fsyntax-only -c -o %o
    link_two_objects "emulator $1 fp32" cu dev/emu/emucc "${flags[@]}" -DPRECISION_FP32
}

headers=() cuda_headers=()
[ $# -gt 0 ] || set -- llmc/*/*.h llmc/*/*.cuh
for header in "$@"; do
    if [ "${header%.cuh}" != "$header" ] ||
        grep -qE '^#include (<(cuda|cublas|nccl|nvtx)|"llmc/cuda/(cuda|cublas)|".*\.cuh")' "$header"; then
        cuda_headers+=("$header")
    else
        headers+=("$header")
    fi
done

# What mpicc adds, its headers as the system's, whose warnings are not ours.
mpi_flags() {
    local word
    command -v mpicc >/dev/null 2>&1 || return 0
    printf '%s\n' -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
    for word in $(mpicc -show); do
        case $word in -I*) printf '%s\n' -isystem "${word#-I}" ;; -L* | -l*) echo "$word" ;; esac
    done
}

if [ ${#headers[@]} -gt 0 ]; then
    alone=("${headers[@]}")
    compiles gcc c -std=gnu11 -fopenmp -march=native
    if [ -z "${TEST_QUICK:-}" ]; then
        mapfile -t mpi < <(mpi_flags)
        compiles g++ cc -std=c++17 -Wno-unknown-pragmas "${mpi[@]+"${mpi[@]}"}"
    fi
fi
if [ ${#cuda_headers[@]} -gt 0 ] && [ -z "${TEST_QUICK:-}" ]; then
    headers=("${cuda_headers[@]}") alone=("${cuda_headers[@]}")
    compiles_emulated g++
fi

echo "headers: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
