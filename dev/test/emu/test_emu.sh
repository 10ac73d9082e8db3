#!/usr/bin/env bash
# The emulator of dev/emu: the options of emucc, programs of textbooks, the meter's tables and the line tables for a
# debugger, with each compiler of the arguments (default: g++); the translation of the source text; with the first
# compiler AddressSanitizer. What the emulator must do as a GPU does, and what it must report: emu_*.cu, which make
# builds.
set -u
cd "$(dirname "$0")/../../.." || exit

work=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_emu.XXXXXX")
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive # waiting threads leave the cores to others
build=build/emu
passed=0 failed=0 skipped=0

report() { # verdict, what
    case $1 in
        "ok  ") passed=$((passed + 1)) ;;
        FAIL) failed=$((failed + 1)) ;;
        skip) skipped=$((skipped + 1)) ;;
    esac
    echo "$1 emu: $2"
}

# expect WHAT COMMAND...: the command must succeed in silence; what it prints is shown if it does not.
expect() {
    local what=$1
    shift
    if "$@" >"$work/output" 2>&1 && [ ! -s "$work/output" ]; then
        report "ok  " "$what"
    else
        head -n 40 "$work/output"
        report FAIL "$what"
    fi
}

# The tests of a program count one by one.
run_suite() { # what, program
    local what=$1 line count
    shift
    timeout 300 "$@" >"$work/output" 2>&1
    line=$(grep -E ': [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$work/output" | tail -n 1)
    grep -v '^ok  ' "$work/output" | grep -v ' passed, .* skipped$' | head -n 60
    if [ -z "$line" ]; then
        report FAIL "$what: did not reach its end"
        return
    fi
    count=${line#*: }
    echo "     emu: $what: $count"
    passed=$((passed + ${count%% passed*}))
    count=${count#*, }
    failed=$((failed + ${count%% failed*}))
    count=${count#*, }
    skipped=$((skipped + ${count%% skipped*}))
}

compile() { CXX=$compiler dev/emu/emucc --build "$build" -I. -Wall -Wextra -Werror "$@"; }

# ---- Translation ----

# translates NAME: what it makes of standard input must be the rest of the arguments, one line each.
translates() {
    local what=$1
    shift
    printf '%s\n' "$@" >"$work/want"
    "$rewrite" >"$work/got" 2>&1
    expect "translation: $what" diff "$work/want" "$work/got"
}

# refuses NAME MESSAGE: of standard input.
refuses() {
    if "$rewrite" >/dev/null 2>"$work/got"; then echo "accepted" >"$work/got"; fi
    printf '%s\n' "$2" >"$work/want"
    expect "translation: $1" diff "$work/want" "$work/got"
}

test_translation() {
    translates "strings, comments and shifts stay as they are" \
        's = "K<<<1, 2>>>(x) __shared__ \" \\";' 'c = '\''"'\''; // K<<<1, 2>>>(x)' \
        'r = R"x(K<<<1,2>>>() )" )x"; /* K<<<' \
        '1, 2>>>(x) */ n = 1'\''000 << 2 >> 1; std::cout << a <b; template <class T> void operator<< <T>(T);' <<'END'
s = "K<<<1, 2>>>(x) __shared__ \" \\";
c = '"'; // K<<<1, 2>>>(x)
r = R"x(K<<<1,2>>>() )" )x"; /* K<<<
1, 2>>>(x) */ n = 1'000 << 2 >> 1; std::cout << a <b; template <class T> void operator<< <T>(T);
END
    translates "a launch over several lines keeps them" \
        'if (x) ::emu::Launch("ns::K<A<int>, (1 > 2)>", __builtin_FILE(), __builtin_LINE(), f<int>(a, b),' \
        '    (n + 1) >> 2, 0, s' ')(ns::K<A<int>, (1 > 2)>, x[i >> 1],' '    y);' <<'END'
if (x) ns::K<A<int>, (1 > 2)><<<f<int>(a, b),
    (n + 1) >> 2, 0, s
>>>(x[i >> 1],
    y);
END
    translates "a launch without arguments, and one of the global scope" \
        '{ ::emu::Launch("::K", __builtin_FILE(), __builtin_LINE(), 1, 2)(::K); }' <<'END'
{ ::K<<<1, 2>>>(); }
END
    translates "a launch of a template without its arguments" \
        'template <class T> void K(T *x); namespace n { void L(); }' \
        '::emu::Launch("K", __builtin_FILE(), __builtin_LINE(), 1, 2).deduce([](auto... a) { K(a...); }, x);' \
        '::emu::Launch("K<int>", __builtin_FILE(), __builtin_LINE(), 1, 2)(K<int>, x);' <<'END'
template <class T> void K(T *x); namespace n { void L(); }
K<<<1, 2>>>(x);
K<int><<<1, 2>>>(x);
END
    translates "device functions and variables" \
        ' static float f(float x) { return x; }' \
        '__attribute__((section("emu_device"), used)) float a[3], b = 1; const int c = 2;' \
        'template <int N>  inline int g();  inline S operator+(S a, S b);' <<'END'
__device__ static float f(float x) { return x; }
__device__ float a[3], b = 1;__constant__ const int c = 2;
template <int N> __device__ inline int g(); __device__ inline S operator+(S a, S b);
END
    refuses "two shared pointers in one declaration" \
        'k.cu:7: error: a __shared__ variable with an initializer, or several pointers in one declaration' <<'END'
# 7 "k.cu"
void k() { __shared__ int *a, *b; }
END
    refuses "a shared variable with an initializer" \
        'k.cu:7: error: a __shared__ variable with an initializer, or several pointers in one declaration' <<'END'
# 7 "k.cu"
void k() { __shared__ int a = 1; }
END
    refuses "a shared variable outside of functions" \
        'k.cu:8: error: __shared__ outside of a function: declare it inside' <<'END'
# 7 "k.cu"

extern __shared__ int a[];
END
    refuses "a launch without end" 'k.cu:7: error: no >>> ends the launch' <<'END'
# 7 "k.cu"
void f() { k<<<1, 2>>(3); }
END
}

# ---- emucc ----

test_options() {
    cat >"$work/part.cu" <<'END'
#include <cuda_runtime.h>
#include "value.h"
__global__ void store(int *out) { *out = VALUE + ADD; }
void call(int *out) {
    store<<<1, 1>>>(out);
}
END
    cat >"$work/main.cu" <<'END'
#include <cuda_runtime.h>
void call(int *out);
int main() {
    int *device, host = 0;
    cudaMalloc(&device, sizeof(int));
    call(device);
    cudaMemcpy(&host, device, sizeof(int), cudaMemcpyDeviceToHost);
    return host == 42 ? 0 : 1;
}
END
    mkdir -p "$work/include folder"
    echo '#define VALUE 40' >"$work/include folder/value.h"
    expect "$compiler: emucc -c, -I, -D, -MMD" \
        compile -c -I "$work/include folder" -DADD=2 -MMD "$work/part.cu" -o "$work/part.o"
    expect "$compiler: the dependencies name the header" grep -q value.h "$work/part.d"
    expect "$compiler: emucc links objects" compile "$work/main.cu" "$work/part.o" -o "$work/two"
    expect "$compiler: two objects" "$work/two"
    echo 'int main() { return undeclared; }' >"$work/wrong.cu"
    compile "$work/wrong.cu" -o "$work/wrong" >"$work/got" 2>&1
    expect "$compiler: errors name the line of the source" grep -q "$work/wrong.cu:1:.*undeclared" "$work/got"
}

# Headers that the emulator does not have end with one line, whether a CUDA is installed here or not.
test_headers() {
    local header lists="(dev/emu/README.md lists what is)"
    for header in curand.h cuda.h thrust/device_vector.h cuda/barrier cutlass/cutlass.h; do
        printf '#include <cuda_runtime.h>\n#include <%s>\nint main() { return 0; }\n' "$header" >"$work/header.cu"
        echo "emucc: $work/header.cu: <$header> is not part of the emulator $lists" >"$work/want"
        compile -I/usr/local/cuda/include "$work/header.cu" -o "$work/header" >"$work/got" 2>&1
        expect "$compiler: <$header> is refused" diff "$work/want" "$work/got"
    done
    echo '#include "cuda_mine.h"' >"$work/header.cu"
    echo 'int main() { return 0; }' >"$work/cuda_mine.h"
    expect "$compiler: a header of the program's own may be named so" compile "$work/header.cu" -o "$work/header"
}

# Programs as textbooks have them. Not optimised, which compiles in half the time.
run_textbook() {
    compile -O0 "dev/test/emu/textbook/$1.cu" -o "$work/$1" && "$work/$1" && EMU_SCHEDULE=random:1 "$work/$1"
}
test_textbook() {
    local name file
    for file in dev/test/emu/textbook/*.cu; do
        name=$(basename "$file" .cu)
        expect "$compiler: textbook/$name" run_textbook "$name"
    done
}

# The meter's counts, and its table: the lines of the README's example.
test_meter() {
    local plain=-O1
    [ "${compiler#clang}" = "$compiler" ] || plain=-O0
    # multiply-adds in one instruction, where the processor has it
    expect "$compiler: emu_meter.cu builds for this processor" \
        compile --meter $plain -march=native -ffp-contract=fast dev/test/emu/emu_meter.cu -o "$work/meter"
    run_suite "$compiler: emu_meter, for this processor" "$work/meter"
    expect "$compiler: dev/emu/transpose.cu builds" compile --meter -g $plain dev/emu/transpose.cu -o "$work/transpose"
    EMU_METER=lines "$work/transpose" >"$work/table" 2>&1
    sed -n '/^emu: what the kernels did/,/^\.\.\./p; /^  shared load  /,/^```/p' dev/emu/README.md |
        grep -v -e '^\.\.\.' -e '^```' | grep -vxFf "$work/table" >"$work/got"
    expect "$compiler: the tables of dev/emu/README.md are what the meter prints" cat "$work/got"
    EMU_METER=yes "$work/transpose" >"$work/got" 2>&1
    expect "$compiler: EMU_METER is checked" grep -qx 'emu: EMU_METER is "yes", expected 0, 1 or lines.*' "$work/got"
    EMU_METER=1 EMU_METER_GPU=tpu "$work/transpose" >"$work/got" 2>&1
    expect "$compiler: EMU_METER_GPU is checked" \
        grep -q 'unknown GPU "tpu" for the meter, expected a short name' "$work/got"
    echo "emu: the meter needs a program of dev/emu/emucc --meter, at an unknown line; status 1" >"$work/want"
    { EMU_METER=1 "$work/two" 2>&1 || echo "status $?"; } | paste -sd ';' | sed 's/;/; /' >"$work/got"
    expect "$compiler: the meter refuses a program without its calls" diff "$work/want" "$work/got"
}

test_debugger() {
    if ! command -v gdb >/dev/null 2>&1; then
        report skip "$compiler: gdb: none here"
        return
    fi
    local features=$build/emu_features
    if [ "$compiler" != g++ ] || [ ! -x "$features" ]; then
        features=$work/features
        expect "$compiler: emu_features.cu builds without a warning" \
            compile -O1 dev/test/emu/emu_features.cu -o "$features"
        run_suite "$compiler: emu_features" "$features"
    fi
    EMU_THREADS=1 timeout 60 gdb -batch -ex 'break use_config' -ex run -ex bt \
        -ex 'print config.scale' "$features" >"$work/got" 2>&1
    expect "$compiler: gdb stops in a kernel and shows its arguments" grep -q '= 2$' "$work/got"
}

test_compiler() {
    test_options
    test_headers
    test_textbook
    test_meter
    test_debugger
}

# With AddressSanitizer, which has checks of its own. Optimising would take longer than it saves.
test_sanitized() {
    expect "$compiler: emu_features.cu builds with --sanitize" \
        compile --sanitize -O0 dev/test/emu/emu_features.cu -o "$work/sanitized"
    run_suite "$compiler: emu_features, --sanitize" "$work/sanitized"
    expect "$compiler: emu_nccl.cu builds with --sanitize" \
        compile --sanitize -O0 dev/test/emu/emu_nccl.cu -o "$work/sanitized_nccl"
    run_suite "$compiler: emu_nccl, --sanitize" env EMU_CHECK=0 "$work/sanitized_nccl"
}

read -r -a compilers <<<"${*:-g++}"
for compiler in "${compilers[@]}"; do
    if ! command -v "$compiler" >/dev/null 2>&1; then
        report skip "$compiler: no such compiler here"
        continue
    fi
    test_compiler
    rewrite=$build/$(basename "$compiler")-plain/rewrite
done
if [ -x "${rewrite:-}" ]; then test_translation; fi
compiler=${compilers[0]}
if command -v "$compiler" >/dev/null 2>&1; then test_sanitized; fi

echo "emu: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
