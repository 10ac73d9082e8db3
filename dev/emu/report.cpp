// Reports a mistake: one line names the mistake, the place and the thread, more lines give details, and the program
// ends with status 1. The first report wins, and the other workers wait for the end.
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <mutex>

namespace emu {

__thread Now now;
__thread bool reporting;

// In a kernel only reports use text, and each begins with a call of format.
std::string format(const char *text, ...) {
    reporting |= in_kernel();
    char line[1024];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof(line), text, arguments);
    va_end(arguments);
    return line;
}

std::string to_text(Source at) { return at.file ? format("%s:%d", at.file, at.line) : "an unknown line"; }
std::string to_text(uint3 v) { return format("(%u,%u,%u)", v.x, v.y, v.z); }

// The path of this program for a command line, or "" if it cannot be told.
static std::string own_path() {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length <= 0 || memchr(path, '\'', static_cast<size_t>(length))) { return ""; }
    return "'" + std::string(path, static_cast<size_t>(length)) + "'";
}

// Calls use(line) for each line that a command about this program prints.
static void for_each_line(const std::string &command, const std::function<void(const char *)> &use) {
    FILE *pipe = own_path().empty() ? nullptr : popen((command + " 2>/dev/null").c_str(), "r");
    char line[4096];
    while (pipe != nullptr && fgets(line, sizeof(line), pipe) != nullptr) {
        line[strcspn(line, "\n")] = '\0';
        use(line);
    }
    if (pipe != nullptr) { pclose(pipe); }
}

void for_each_instruction(const std::function<void(const char *)> &use) {
    for_each_line("objdump -d --no-show-raw-insn " + own_path(), use);
}

// What addr2line says of addresses of this program. The innermost line comes first, then those it is inlined into.
static std::map<uintptr_t, std::string> run_addr2line(const std::string &options, const std::vector<uintptr_t> &pcs) {
    std::map<uintptr_t, std::string> texts;
    constexpr size_t AT_ONCE = 1000; // a command line has a limit
    for (size_t begin = 0; begin < pcs.size(); begin += AT_ONCE) {
        std::string command = "addr2line -a " + options + " -e " + own_path();
        for (size_t i = begin; i < pcs.size() && i < begin + AT_ONCE; i++) { command += format(" 0x%zx", pcs[i]); }
        std::string *text = nullptr;
        for_each_line(command, [&](const char *line) {
            if (strncmp(line, "0x", 2) == 0) {
                text = &texts[strtoull(line, nullptr, 16)];
            } else if (text != nullptr && strstr(line, "/emu/include/emu_ptx.h:") == nullptr) {
                const char *note = strstr(line, " (discriminator");
                *text += text->empty() ? "" : ", inlined at ";
                text->append(line, note ? static_cast<size_t>(note - line) : strlen(line));
            }
        });
    }
    return texts;
}

// Paths inside the working folder are shown relative to it.
static std::string shorten(std::string text) {
    char folder[4096];
    if (getcwd(folder, sizeof(folder)) == nullptr) { return text; }
    std::string prefix = std::string(folder) + "/";
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
        text.erase(at, prefix.size());
    }
    return text;
}

std::map<uintptr_t, std::string> lines_of_pcs(const std::vector<uintptr_t> &pcs) {
    std::vector<uintptr_t> inside; // a return address may belong to the next line
    for (uintptr_t pc : pcs) { inside.push_back(pc - 1); }
    std::map<uintptr_t, std::string> found = run_addr2line("-i", inside), lines;
    for (uintptr_t pc : pcs) {
        const std::string &text = found[pc - 1];
        bool unknown = text.empty() || text.compare(0, 2, "??") == 0;
        lines[pc] = unknown ? format("address 0x%zx", pc) : shorten(text);
    }
    return lines;
}

std::string line_of_pc(uintptr_t pc) { return pc == 0 ? "an unknown line" : lines_of_pcs({pc})[pc]; }

// A function's name without its type and parameters: "void ns::f<4, int (*)()>(float*)" becomes "ns::f<4, int (*)()>".
static std::string bare_name(const std::string &text) {
    size_t begin = 0, end = 0;
    for (int depth = 0; end < text.size() && (depth > 0 || text[end] != '('); end++) {
        depth += text[end] == '<' ? 1 : text[end] == '>' ? -1 : 0;
        if (depth == 0 && text[end] == ' ') { begin = end + 1; }
    }
    return text.substr(begin, end - begin);
}

std::map<uintptr_t, std::string> names_of_functions(const std::vector<uintptr_t> &functions) {
    std::map<uintptr_t, std::string> names = run_addr2line("-f -C", functions);
    for (auto &entry : names) { entry.second = bare_name(entry.second.substr(0, entry.second.find(", inlined at "))); }
    return names;
}

[[noreturn]] static void finish(const std::string &first_line, const std::string &details) {
    static std::mutex first;
    first.lock(); // never unlocked
    fflush(stdout);
    fprintf(stderr, "emu: %s\n", first_line.c_str());
    if (!details.empty()) { fprintf(stderr, "%s\n", details.c_str()); }
    fflush(stderr);
    const char *want_break = getenv("EMU_BREAK");
    if (want_break && strcmp(want_break, "1") == 0) { raise(SIGTRAP); }
    _exit(1);
}

static std::string thread_text() {
    const Block &block = *now.block;
    return format(" in kernel %s (launched at %s), block %s, thread %s", block.kernel->name,
                  to_text(block.kernel->launched).c_str(), to_text(block.index).c_str(),
                  to_text(now.thread->index).c_str());
}

[[noreturn]] static void report_at(const std::string &line, const std::string &what, const std::string &details) {
    finish(what + (in_kernel() ? thread_text() : "") + ", at " + line, details);
}

void report(Source at, const std::string &what, const std::string &details) { report_at(to_text(at), what, details); }

void report_pc(uintptr_t pc, const std::string &what, const std::string &details) {
    report_at(line_of_pc(pc), what, details);
}

void report_launch(const Kernel &kernel, const std::string &what, const std::string &details) {
    finish(what + " in the launch of kernel " + kernel.name + ", at " + to_text(kernel.launched), details);
}

void host_only(const char *function, Source at) {
    if (in_kernel()) { report(at, format("call of the host function %s inside a kernel", function)); }
}

} // namespace emu

// In the place of the C library's: an assert in a kernel is reported with its thread.
extern "C" void __assert_fail(const char *assertion, const char *file, unsigned line, const char *function) noexcept {
    emu::Source at = {file, static_cast<int>(line)};
    if (emu::in_kernel()) { emu::report(at, emu::format("assertion \"%s\" failed", assertion)); }
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, assertion);
    abort();
}
