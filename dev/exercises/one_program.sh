#!/bin/sh
# Prints the source of one program that holds all chapters, so that a test compiles their headers once. Each chapter is
# a namespace of C++, without and with our solutions: `book chapter_03_layernorm`, `book solved_03_layernorm`.
set -eu
cd "$(dirname "$0")/../.."

grep -h '^#include' dev/exercises/*/* | grep -v ANSWERS | sort -u
echo '#define main chapter_main'
for kind in chapter solved; do
    [ $kind = chapter ] || printf '#undef ANSWERS\n#define ANSWERS "solutions.h"\n'
    for source in dev/exercises/*/chapter.c*; do
        printf 'namespace %s_%s {\n#include "%s"\n}\n' $kind "$(basename "${source%/*}")" "$source"
    done
done
echo '#undef main'
echo 'int main(int argc, char **argv) {'
for kind in chapter solved; do
    for source in dev/exercises/*/chapter.c*; do
        name=${kind}_$(basename "${source%/*}")
        echo "    if (argc == 2 && strcmp(argv[1], \"$name\") == 0) { return $name::chapter_main(); }"
    done
done
printf '    fprintf(stderr, "%%s: expected a chapter, such as chapter_03_layernorm\\n", argv[0]);\n'
echo '    return 1;'
echo '}'
