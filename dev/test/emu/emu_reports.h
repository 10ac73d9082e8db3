// For the tests of the emulator's reports: the comments of a test's source say what they must be. The lines `//! text`
// before BUG(name..) are the report of that bug. In them
//     @X       is the last line before the next report that ends with `// @X`
//     [B,T]    is ` (launched at @L), block (B,0,0), thread (T,0,0),`
//     %x       is an address
// Line ends and several spaces count as one space.
#ifndef EMU_REPORTS_H
#define EMU_REPORTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <string>
#include <vector>

// Puts `by` in the place of each `what`, and of the text behind it up to one of the characters of `until`.
static inline void replace_each(std::string *text, const std::string &what, const std::string &by,
                                const char *until = nullptr) {
    for (size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += by.size()) {
        size_t end = at + what.size();
        if (until != nullptr) { end = std::min(text->find_first_of(until, end), text->size()); }
        text->replace(at, end - at, by);
    }
}

// In the form of a comment's report.
static inline std::string comparable(const std::string &text) {
    std::string result;
    for (char c : text) {
        bool space = c == ' ' || c == '\n';
        if (!space || (!result.empty() && result.back() != ' ')) { result += space ? ' ' : c; }
    }
    replace_each(&result, "mask 0x", "mask "); // is no address
    replace_each(&result, "0x", "%x", " ,)");
    return result;
}

// The report of each bug of this file.
static inline std::map<std::string, std::string> read_expectations(const char *path) {
    std::map<std::string, std::string> reports, marks;
    std::string report, name;
    FILE *file = fopen(path, "r");
    char line[4096];
    if (file == nullptr) { printf("%s: cannot read; run in the folder that it was compiled in\n", path), exit(1); }
    auto finish = [&] {
        unsigned block, thread;
        int length;
        size_t at = report.find('[');
        if (at < report.size() && sscanf(&report[at], "[%u,%u]%n", &block, &thread, &length) == 2) {
            report.replace(at, size_t(length),
                           " (launched at @L), block (" + std::to_string(block) + ",0,0), thread (" +
                               std::to_string(thread) + ",0,0),");
        }
        for (auto mark = marks.rbegin(); mark != marks.rend(); mark++) { // the longer of two that begin alike is first
            replace_each(&report, mark->first, mark->second);
        }
        reports[name] = comparable(report);
        report.clear(), name.clear();
    };
    for (int number = 1; fgets(line, sizeof(line), file) != nullptr; number++) {
        line[strcspn(line, "\n")] = '\0';
        const char *mark = strstr(line, "// @");
        if (mark != nullptr) { marks[mark + 3] = std::string(path) + ":" + std::to_string(number); }
        if (strncmp(line, "//! ", 4) == 0) {
            if (!name.empty()) { finish(); }
            report += std::string(line + 4) + "\n";
        } else if (strncmp(line, "BUG", 3) == 0 && !report.empty()) {
            const char *begin = strchr(line, '(') + 1;
            name.assign(begin, strcspn(begin, ",)"));
        }
    }
    finish();
    fclose(file);
    return reports;
}

// ---- Processes of this program ----

struct Result {
    int status; // exit status, or 128 + the signal
    std::string text;
};

// Its output goes into memory.
struct Child {
    pid_t pid;
    int output;
};

static inline Child start_child(std::vector<std::string> words) {
    std::vector<char *> arguments;
    Child child;
    child.output = memfd_create("output", MFD_CLOEXEC);
    if (child.output < 0) { exit(2); }
    words.insert(words.begin(), "child");
    for (std::string &word : words) { arguments.push_back(&word[0]); }
    arguments.push_back(nullptr);
    fflush(stdout);
    child.pid = fork();
    if (child.pid == 0) {
        dup2(child.output, 1), dup2(child.output, 2);
        execv("/proc/self/exe", arguments.data());
        _exit(127);
    }
    return child;
}

static inline Result wait_for_child(const Child &child) {
    int status;
    char buffer[4096];
    Result result;
    waitpid(child.pid, &status, 0);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    lseek(child.output, 0, SEEK_SET);
    for (ssize_t n; (n = read(child.output, buffer, sizeof(buffer))) > 0;) { result.text.append(buffer, size_t(n)); }
    close(child.output);
    return result;
}

static inline Result run_child(const std::vector<std::string> &words) { return wait_for_child(start_child(words)); }

#endif // EMU_REPORTS_H
