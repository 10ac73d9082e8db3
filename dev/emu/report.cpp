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

__thread bool reporting;

// Only reports use text, and each begins with a call of format.
std::string format(const char *text, ...) {
    reporting = true;
    char line[1024];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(line, sizeof(line), text, arguments);
    va_end(arguments);
    return line;
}

std::string to_text(Source at) { return at.file ? format("%s:%d", at.file, at.line) : "an unknown line"; }
std::string to_text(uint3 v) { return format("(%u,%u,%u)", v.x, v.y, v.z); }

// Runs addr2line on this program. The innermost line comes first, then the lines that it is inlined into.
static std::string run_addr2line(uintptr_t pc) {
    char path[4096], command[4352];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length <= 0 || memchr(path, '\'', static_cast<size_t>(length))) { return ""; }
    path[length] = '\0';
    snprintf(command, sizeof(command), "addr2line -i -e '%s' 0x%lx 2>/dev/null", path, static_cast<unsigned long>(pc));
    FILE *pipe = popen(command, "r");
    if (pipe == nullptr) { return ""; }
    std::string text;
    char line[4096];
    while (fgets(line, sizeof(line), pipe) != nullptr) {
        line[strcspn(line, "\n")] = '\0';
        char *note = strstr(line, " (discriminator");
        if (note) { *note = '\0'; }
        if (!text.empty()) { text += ", inlined at "; }
        text += line;
    }
    pclose(pipe);
    return text;
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

std::string line_of_pc(uintptr_t pc) {
    if (pc == 0) { return "an unknown line"; }
    std::string text = run_addr2line(pc - 1); // the return address may belong to the next line
    if (text.empty() || text.compare(0, 2, "??") == 0) {
        return format("address 0x%lx", static_cast<unsigned long>(pc));
    }
    return shorten(text);
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

static void report_at(const std::string &line, const std::string &what, const std::string &details) {
    finish(what + (in_kernel() ? thread_text() : "") + ", at " + line, details);
}

void report(Source at, const std::string &what, const std::string &details) {
    report_at(to_text(at), what, details);
    abort();
}

void report_pc(uintptr_t pc, const std::string &what, const std::string &details) {
    report_at(line_of_pc(pc), what, details);
    abort();
}

void report_launch(const Kernel &kernel, const std::string &what, const std::string &details) {
    finish(what + " in the launch of kernel " + kernel.name + ", at " + to_text(kernel.launched), details);
}

void host_only(const char *function, Source at) {
    if (in_kernel()) { report(at, format("call of the host function %s inside a kernel", function)); }
}

} // namespace emu
