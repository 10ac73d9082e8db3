#!/usr/bin/env bash
# Every header of llmc/ stands alone: it compiles without a warning as C11 and as C++17 (the CUDA trainer includes the
# same headers), with and without OpenMP, and two objects that each include all of them link (nothing but `static
# inline` in a header). A compiler that is missing, or has no OpenMP, is skipped. Arguments: headers to check, not all.
set -eu
cd "$(dirname "$0")/../.."

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

# compiles NAME SOURCE-SUFFIX FLAGS...: one verdict for all the headers alone, one for the link.
compiles() {
    local compiler=$1 suffix=$2 header what bad=""
    shift 2
    what="$compiler $*"
    if ! command -v "$compiler" >/dev/null 2>&1; then
        report skip "$what: no $compiler here"
        return
    fi
    echo 'int main(void) { return 0; }' >"$work/probe.$suffix"
    case $* in *-fopenmp*) echo '#include <omp.h>' >>"$work/probe.$suffix" ;; esac
    if ! "$compiler" "$@" "$work/probe.$suffix" -o "$work/probe" 2>/dev/null; then
        report skip "$what: not possible with this compiler"
        return
    fi
    for header in "${headers[@]}"; do
        echo "#include \"$header\"" >"$work/one.$suffix"
        if ! "$compiler" "$@" -Wall -Wextra -Werror -I. -fsyntax-only "$work/one.$suffix" 2>"$work/messages"; then
            bad="$bad $header"
            head -n 12 "$work/messages"
        fi
    done
    if [ -n "$bad" ]; then report FAIL "$what: does not compile alone:$bad"; else report "ok  " "$what: alone"; fi

    printf '#include "%s"\n' "${headers[@]}" >"$work/all.$suffix"
    { cat "$work/all.$suffix"; echo 'int second(void) { return 0; }'; } >"$work/b.$suffix"
    { cat "$work/all.$suffix"; echo 'int second(void); int main(void) { return second(); }'; } >"$work/a.$suffix"
    if "$compiler" "$@" -Wall -Wextra -Werror -I. "$work/a.$suffix" "$work/b.$suffix" -o "$work/linked" -lm \
        2>"$work/messages"; then
        report "ok  " "$what: all of them in two objects, linked"
    else
        head -n 12 "$work/messages"
        report FAIL "$what: two objects that include all headers do not link"
    fi
}

headers=("$@")
[ $# -gt 0 ] || headers=(llmc/*.h)

compiles gcc c -std=gnu11 -fopenmp -march=native
compiles gcc c -std=gnu11 -Wno-unknown-pragmas
compiles g++ cc -std=c++17 -fopenmp
compiles clang c -std=gnu11 -Wno-unknown-pragmas
compiles clang c -std=gnu11 -fopenmp -march=native
compiles clang++ cc -std=c++17 -Wno-unknown-pragmas

echo "headers: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
