// For the tests of the emulator's reports: the comments of a test's source say what they must be.
#ifndef EMU_REPORTS_H
#define EMU_REPORTS_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <map>
#include <string>

static inline void replace_all(std::string *text, const std::string &what, const std::string &by) {
    for (size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += by.size()) {
        text->replace(at, what.size(), by);
    }
}

// What the comment in this file says the report is; addresses are %x in both.
static inline std::map<std::string, std::string> read_expectations(const char *path) {
    std::map<std::string, std::string> expected, marks;
    std::string current;
    FILE *file = fopen(path, "r");
    char line[4096];
    if (file == nullptr) { printf("%s: cannot read; run in the folder that it was compiled in\n", path), exit(1); }
    auto finish = [&] { // the longest name first, of those that begin alike
        for (auto mark = marks.rbegin(); mark != marks.rend(); mark++) {
            replace_all(&expected[current], mark->first, mark->second);
        }
    };
    for (int number = 1; fgets(line, sizeof(line), file) != nullptr; number++) {
        line[strcspn(line, "\n")] = '\0';
        const char *mark = strstr(line, "// @");
        if (mark) { marks[mark + 3] = std::string(path) + ":" + std::to_string(number); }
        if (strncmp(line, "//! ", 4) != 0) { continue; }
        bool is_name = strspn(line + 4, "abcdefghijklmnopqrstuvwxyz_") == strlen(line + 4);
        if (is_name) { finish(), current = line + 4; }
        if (!is_name) { expected[current] += std::string(line + 4) + "\n"; }
    }
    finish();
    fclose(file);
    return expected;
}

static inline std::string without_addresses(const std::string &text) {
    std::string result;
    for (size_t i = 0; i < text.size();) {
        size_t end = i + 2;
        bool mask = i >= 5 && text.compare(i - 5, 5, "mask ") == 0;
        while (text.compare(i, 2, "0x") == 0 && !mask && end < text.size() && isxdigit(text[end])) { end++; }
        result += end > i + 2 ? "%x" : text.substr(i, 1);
        i = end > i + 2 ? end : i + 1;
    }
    return result;
}

// Line ends and several spaces count as one space: the comments are wrapped.
static inline std::string one_line(const std::string &text) {
    std::string result;
    for (char c : text) {
        bool space = isspace((unsigned char)c);
        if (!space || (!result.empty() && result.back() != ' ')) { result += space ? ' ' : c; }
    }
    return result;
}

#endif // EMU_REPORTS_H
